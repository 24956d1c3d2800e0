package traefikplugin

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// adoptAll sets the settings whose names Traefik did not find because they are spelt as in Caddy, such as on_error for
// onError. A name that no setting has is an error: without it, a limit or a policy would be off without a word.
func (c *Config) adoptAll() error {
	if err := adopt("", c.Zone.Other, reflect.ValueOf(c).Elem(), reflect.ValueOf(&c.Zone).Elem()); err != nil {
		return err
	}
	if err := adoptMatch("", c.Match); err != nil {
		return err
	}
	for i := range c.Zones {
		path := "zones[" + strconv.Itoa(i) + "]."
		if err := adopt(path, c.Zones[i].Other, reflect.ValueOf(&c.Zones[i]).Elem()); err != nil {
			return err
		}
		if err := adoptMatch(path, c.Zones[i].Match); err != nil {
			return err
		}
	}
	for i := range c.Policy {
		if err := adopt("policy.", c.Policy[i].Other, reflect.ValueOf(&c.Policy[i]).Elem()); err != nil {
			return err
		}
	}
	for i := range c.History {
		if err := adopt("history.", c.History[i].Other, reflect.ValueOf(&c.History[i]).Elem()); err != nil {
			return err
		}
		for j := range c.History[i].Retention {
			one := &c.History[i].Retention[j]
			if err := adopt("history.retention.", one.Other, reflect.ValueOf(one).Elem()); err != nil {
				return err
			}
		}
	}
	if c.IPStrategy != nil {
		return adopt("ipStrategy.", c.IPStrategy.Other, reflect.ValueOf(c.IPStrategy).Elem())
	}
	return nil
}

func adoptMatch(path string, m *edge.Match) error {
	if m == nil {
		return nil
	}
	return adopt(path+"match.", m.Other, reflect.ValueOf(m).Elem())
}

// adopt sets the fields of structs for names that Traefik did not find. path begins the names in errors.
func adopt(path string, other map[string]any, structs ...reflect.Value) error {
	var given []string
	for name := range other {
		given = append(given, name)
	}
	sort.Strings(given) // so that of several errors it is always the same one
	for _, name := range given {
		if err := adoptOne(path, name, other[name], structs); err != nil {
			return err
		}
	}
	return nil
}

func adoptOne(path, name string, value any, structs []reflect.Value) error {
	var known []string
	for _, fields := range structs {
		for i := 0; i < fields.NumField(); i++ {
			setting := edge.SettingOf(fields.Type().Field(i))
			if setting == "" {
				continue
			}
			known = append(known, setting)
			if !strings.EqualFold(setting, strings.Replace(name, "_", "", -1)) {
				continue
			}
			field := fields.Field(i)
			switch {
			case field.Kind() != reflect.String:
				return &ratelimit.FieldError{Field: "setting", Value: path + name, Want: "spelt " + setting}
			case field.String() != "":
				return &ratelimit.FieldError{Field: "setting", Value: path + name, Want: "left out: " + setting + " is given"}
			}
			field.SetString(plainText(value))
			return nil
		}
	}
	sort.Strings(known)
	return &ratelimit.FieldError{Field: "setting", Value: path + name, Want: edge.Among(name, known)}
}

// plainText is a value as Traefik converts it to text. Numbers from Kubernetes are floating-point numbers.
func plainText(value any) string {
	if number, isNumber := value.(float64); isNumber {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// understood says what a middleware has understood of its configuration, for the log. It has no DSN.
func (h *handler) understood(c *Config) string {
	var parts []string
	for i, from := range c.zones() {
		z := h.site.Zones[i]
		limit := from.zone.Limit
		if limit == "" {
			limit = "by " + from.zone.Limits
		}
		parts = append(parts, "limit "+z.Limit.Prefix+": "+limit+" ("+z.Limit.Algorithm.String()+", "+z.Mode.String()+"), key "+z.KeyText)
	}
	if h.site.Policy != nil {
		policy := "policy"
		if len(c.Policy) == 0 || c.Policy[0].APIKey == "" {
			policy += " without API keys"
		} else {
			policy += " with the API key " + c.Policy[0].APIKey
		}
		if len(c.Policy) > 0 && c.Policy[0].User != "" {
			policy += " and the user " + c.Policy[0].User
		}
		parts = append(parts, policy)
	} else {
		parts = append(parts, "no policy")
	}
	return "middleware " + h.name + ": " + strings.Join(parts, "; ") + "; on_error " + string(h.site.Decider.OnError)
}
