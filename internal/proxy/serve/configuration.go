package serve

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// Configuration is a handler's configuration as text, before Compile.
type Configuration struct {
	// Handler has the settings of settings.HandlerTable, and those of the handler's own limit. The audit
	// setting is also the default for the zones and the policy.
	Handler settings.Values
	Matches bool              // the handler's own limit has a matcher
	Zones   []settings.Values // further limits
	Policy  settings.Values   // the settings of settings.PolicyTable; nil without a policy

	// IPv6Prefix is the ipv6_prefix of limits without their own; "" is the default.
	IPv6Prefix string

	Parse reading.ParseText
}

// PartError is an error in the policy, the history or a zone of a configuration.
type PartError struct {
	Part int // the index in Configuration.Zones, PolicyPart or HistoryPart
	Name string
	Err  error
}

// The parts of a configuration in a PartError that are not zones.
const (
	PolicyPart  = -1
	HistoryPart = -2
)

func (e *PartError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap returns the error without the name of the part.
func (e *PartError) Unwrap() error { return e.Err }

// ZoneName returns the name of a zone in errors. i is the index of the zone.
func ZoneName(i int, prefix string) string {
	if prefix == "" {
		return "zone " + strconv.Itoa(i+1)
	}
	return "zone " + strconv.Quote(prefix)
}

// Compile validates a configuration and returns its Site. The caller adds the store and the proxy's functions
// to the Site. If the handler has its own limit, it is the first of Site.Zones. An error is a
// *ratelimit.FieldError, or a *PartError that wraps a *ratelimit.FieldError.
func (c *Configuration) Compile() (*Site, error) {
	read := &settings.Settings{}
	if err := settings.Read(settings.HandlerTable, c.Handler, read); err != nil {
		return nil, err
	}
	s := &Site{Clients: &reading.Clients{}, Handler: read.Handler}
	if _, err := option.ParseAudit(c.Handler["audit"], option.Audit{}); err != nil {
		return nil, err
	}
	var err error
	if route := c.Handler["route"]; route != "" {
		if s.Route, err = c.Parse("route", route); err != nil {
			return nil, err
		}
	}
	if c.Policy != nil {
		if s.Policy, err = newPolicy(c.Policy, c.Parse); err != nil {
			return nil, &PartError{Part: PolicyPart, Name: "policy", Err: err}
		}
		if s.Policy.Route == nil {
			s.Policy.Route = s.Route
		}
	}
	hasLimit := c.hasLimit()
	if len(c.Zones) > 0 && hasLimit && c.Handler["limit"] == "" {
		want := "set, because another setting of a limit is set here, which the zones do not use"
		return nil, option.Invalid("limit", "", want)
	}
	if hasLimit || len(c.Zones) == 0 && c.Policy == nil {
		if err := c.add(s, c.Handler); err != nil {
			return nil, err
		}
	}
	own := len(s.Zones)
	for i := range c.Zones {
		zone := &settings.Settings{}
		err := settings.Read(settings.ZoneTable, c.Zones[i], zone)
		if err == nil {
			err = c.add(s, c.Zones[i])
		}
		if err != nil {
			name := ZoneName(i, c.Zones[i]["prefix"])
			return nil, &PartError{Part: i, Name: name, Err: err}
		}
		s.Zones[own+i].Hidden = zone.Limit.Hidden
	}
	if at, err := checkRows(s.Zones); err != nil {
		name := ZoneName(at-own, s.Zones[at].Limit.Prefix)
		return nil, &PartError{Part: at - own, Name: name, Err: err}
	}
	return s, nil
}

// hasLimit reports whether the handler itself has a matcher or a setting of a limit other than audit.
func (c *Configuration) hasLimit() bool {
	for i := range settings.LimitTable {
		if name := settings.LimitTable[i].Name; name != "audit" && c.Handler[name] != "" {
			return true
		}
	}
	return c.Matches
}

// add compiles a limit and appends it to the zones of s. A limit without ipv6_prefix gets that of the
// handler. With a policy, the prefix of the limit must not start like the prefixes of rules, since a request
// that is charged to both could hit one row twice.
func (c *Configuration) add(s *Site, values settings.Values) error {
	z, err := NewZone(values, c.IPv6Prefix, c.Parse)
	if err != nil {
		return err
	}
	s.Zones = append(s.Zones, z)
	if s.Policy == nil {
		return nil
	}
	for _, key := range s.Policy.Keys {
		z.Key.AddAPIKey(key)
	}
	z.Hit.Secret = z.Key.Secret
	if strings.HasPrefix(z.Limit.Prefix, option.RulePrefix) {
		want := "a name that does not begin with " + option.RulePrefix + ": the policy has counters there"
		return option.Invalid("prefix", z.Limit.Prefix, want)
	}
	return nil
}
