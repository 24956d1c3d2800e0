package traefikplugin

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settings that only this proxy has.
var (
	dsnFile        = settings.Setting{Name: "dsn_file"}
	forwardHeaders = settings.Setting{Name: "forward_headers"}
)

// values reads settings, which may be spelt as in Caddy, such as on_error for onError. A name that no table
// has is an error: without it, a limit or a policy would be off without a word. path begins the names in
// errors. fields are the names of what Traefik decodes itself.
func values(path string, given Settings, fields string, tables ...[]settings.Setting) (settings.Values,
	error) {
	read := settings.Values{}
	known := strings.Fields(fields)
	spelt := map[string]string{} // as in Caddy, by names in lower case without underscores
	for _, name := range known {
		spelt[strings.ToLower(name)] = name
	}
	for _, table := range tables {
		for i := range table {
			if table[i].Form != settings.Block {
				known = append(known, camelCase(table[i].Name))
				spelt[strings.Replace(table[i].Name, "_", "", -1)] = table[i].Name
			}
		}
	}
	var names []string
	for name := range given {
		names = append(names, name)
	}
	sort.Strings(names) // so that of several errors it is always the same one
	as := map[string]string{}
	for _, name := range names {
		setting := spelt[strings.ToLower(strings.Replace(name, "_", "", -1))]
		want := ""
		switch {
		case setting == "":
			sort.Strings(known)
			want = "one of " + strings.Join(known, ", ")
		case strings.Contains(" "+fields+" ", " "+setting+" "):
			want = "spelt " + setting
		case as[setting] != "":
			want = "left out: " + as[setting] + " is given"
		}
		if want != "" {
			return nil, &ratelimit.FieldError{Field: "setting", Value: path + name, Want: want}
		}
		as[setting] = name
		read[setting] = plainText(given[name])
	}
	return read, nil
}

// plainText converts a value to text as Traefik does. Numbers from Kubernetes are floating-point numbers.
func plainText(value any) string {
	if value == nil {
		return ""
	}
	if number, isNumber := value.(float64); isNumber {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// describe returns a description of the compiled configuration for the log, without DSNs.
func (h *handler) describe(policy settings.Values) string {
	var parts []string
	for _, z := range h.site.Zones {
		parts = append(parts,
			"limit "+z.Limit.Prefix+": "+z.Configured["limit"]+" ("+z.Limit.Algorithm.String()+", "+
				string(z.Mode)+"), key "+z.KeyText)
	}
	if policy != nil {
		text := "policy"
		if policy["api_key"] == "" {
			text += " without API keys"
		} else {
			text += " with the API key " + policy["api_key"]
		}
		if policy["user"] != "" {
			text += " and the user " + policy["user"]
		}
		parts = append(parts, text)
	} else {
		parts = append(parts, "no policy")
	}
	return "middleware " + h.name + ": " + strings.Join(parts, "; ") + "; on_error " + string(h.site.OnError)
}
