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
// settings.PolicyTable. They show keyExample and userExample.
func newPolicy(from settings.Values, parse ParseText, keyExample, userExample string) (*Policy, error) {
	p := &Policy{tier: settings.DefaultTier}
	var err error
	if p.Key, err = parseSetting("api_key", from, parse, keyExample); err != nil {
		return nil, err
	}
	if p.User, err = parseSetting("user", from, parse, userExample); err != nil {
		return nil, err
	}
	if p.Tier, err = parseSetting("tier", from, parse, ""); err != nil {
		return nil, err
	}
	if p.Route, err = parseSetting("route", from, parse, ""); err != nil {
		return nil, err
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
	if err := settings.Read(settings.PolicyTable, from, &read); err != nil {
		return nil, err
	}
	p.reject = read.RejectUnknown
	return p, nil
}

// parseSetting parses a setting, or returns nil if it is not set. A setting with an example identifies the
// sender of a request, so it must have a placeholder.
func parseSetting(field string, from settings.Values, parse ParseText, example string) (Text, error) {
	if from[field] == "" {
		return nil, nil
	}
	text, err := parse(field, from[field])
	if err == nil && example != "" && text.Parts().Fixed {
		want := "text with a placeholder, such as " + example + ": all requests would have the same"
		err = &ratelimit.FieldError{Field: field, Value: from[field], Want: want}
	}
	return text, err
}
