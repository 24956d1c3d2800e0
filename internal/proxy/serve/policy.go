package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// Policy is the compiled policy settings of a Site.
type Policy struct {
	Keys              []*reading.Text // the alternatives of the API key; empty without one
	User, Tier, Route *reading.Text   // nil if they are not configured

	// Rules is the policy of the database. Site.Open sets it.
	Rules *policy.Policy

	key      string   // the first header with the API key; "" if the first of Keys is another text
	headers  []string // all headers in Keys
	tier     string   // the value of Tier if it is fixed, else ""
	reject   bool     // requests with invalid API keys are refused
	needsKey bool     // there are Keys, and anonymous requests are refused
}

// newPolicy parses the settings of a policy. Errors are *ratelimit.FieldError with the names of
// settings.PolicyTable.
func newPolicy(values settings.Values, parse reading.ParseText) (*Policy, error) {
	var set settings.Settings
	if err := settings.Read(settings.PolicyTable, values, &set); err != nil {
		return nil, err
	}
	p := &Policy{tier: settings.DefaultTier, reject: set.RejectUnknown}
	read := func(name, configured string) (*reading.Text, error) {
		if configured == "" {
			return nil, nil
		}
		text, err := parse(name, configured)
		if err == nil && text.Fixed && (name == "api_key" || name == "user") {
			want := "text with a placeholder, such as {header.X-Api-Key}: all requests would have the same"
			return nil, option.Invalid(name, configured, want)
		}
		return text, err
	}
	for _, one := range set.APIKey {
		text, err := read("api_key", one)
		if err != nil {
			return nil, err
		}
		if text != nil {
			p.Keys = append(p.Keys, text)
			p.headers = append(p.headers, text.Headers...)
		}
	}
	var err error
	if p.User, err = read("user", values["user"]); err != nil {
		return nil, err
	}
	if p.Tier, err = read("tier", values["tier"]); err != nil {
		return nil, err
	}
	if p.Route, err = read("route", values["route"]); err != nil {
		return nil, err
	}
	if len(p.Keys) > 0 {
		p.key = p.Keys[0].Header
		p.needsKey = !set.Anonymous
	} else if text := values["without_key"]; text != "" && !set.Anonymous {
		return nil, option.Invalid("without_key", text, "left out: requests have no key")
	}
	if p.Tier != nil {
		p.tier = ""
		if p.Tier.Fixed {
			p.tier = p.Tier.Values(nil)[0]
		}
	}
	return p, nil
}
