package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Policy is the compiled policy settings of a Site.
type Policy struct {
	Key, User, Tier, Route Text // nil if they are not configured

	// Live is the policy of the database. Site.Open sets it.
	Live *policy.Policy

	key     string   // the header with the API key; "" if Key is another text
	headers []string // all headers in Key
	tier    string   // the value of Tier if it is fixed, else ""
	reject  bool     // requests with invalid API keys are refused
}

// newPolicy parses the settings of a policy. Errors are *ratelimit.FieldError with the names of
// settings.PolicyTable.
func newPolicy(values settings.Values, parse ParseText) (*Policy, error) {
	p := &Policy{tier: settings.DefaultTier}
	for _, one := range []struct {
		name string
		to   *Text
	}{{"api_key", &p.Key}, {"user", &p.User}, {"tier", &p.Tier}, {"route", &p.Route}} {
		configured := values[one.name]
		if configured == "" {
			continue
		}
		text, err := parse(one.name, configured)
		if err != nil {
			return nil, err
		}
		if text.Parts().Fixed && (one.name == "api_key" || one.name == "user") {
			want := "text with a placeholder, such as {header.X-Api-Key}: all requests would have the same"
			return nil, &ratelimit.FieldError{Field: one.name, Value: configured, Want: want}
		}
		*one.to = text
	}
	if p.Key != nil {
		parts := p.Key.Parts()
		p.headers = parts.Headers
		p.key = parts.Header
	}
	if p.Tier != nil {
		p.tier = ""
		if p.Tier.Parts().Fixed {
			p.tier = p.Tier.Of(nil)
		}
	}
	var read settings.Settings
	if err := settings.Read(settings.PolicyTable, values, &read); err != nil {
		return nil, err
	}
	p.reject = read.RejectUnknown
	return p, nil
}
