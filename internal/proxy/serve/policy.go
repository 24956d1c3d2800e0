package serve

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Policy is the policy of a Site, compiled.
type Policy struct {
	Key, User, Tier, Route Text // nil if they are not configured

	// Live is the policy of the database. Site.Open sets it.
	Live *policy.Policy

	key     string   // the header with the API key; "" if another text has it
	headers []string // all headers that hold it
	tier    string   // unless Tier has placeholders
	reject  bool     // requests with keys that are not valid
}

// newPolicy reads and checks a policy. keyExample and userExample are placeholders for errors. Errors are
// *ratelimit.FieldError, with the names of settings.PolicyTable.
func newPolicy(from settings.Values, parse ParseText, keyExample, userExample string) (*Policy, error) {
	p := &Policy{tier: settings.DefaultTier}
	var err error
	if p.Key, err = parseSender("api_key", from, parse, keyExample); err != nil {
		return nil, err
	}
	if p.User, err = parseSender("user", from, parse, userExample); err != nil {
		return nil, err
	}
	if p.Tier, err = parseIfSet("tier", from, parse); err != nil {
		return nil, err
	}
	if p.Route, err = parseIfSet("route", from, parse); err != nil {
		return nil, err
	}
	if p.Key != nil {
		parts := p.Key.Parts()
		p.headers = parts.Headers
		p.key = parts.Header
	}
	if p.Tier != nil {
		p.tier = ""
		if p.Tier.Fixed() {
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

// parseIfSet returns nil for text that was left out.
func parseIfSet(field string, from settings.Values, parse ParseText) (Text, error) {
	if from[field] == "" {
		return nil, nil
	}
	return parse(field, from[field])
}

// parseSender reads text that identifies the sender of a request, and so must have a placeholder.
func parseSender(field string, from settings.Values, parse ParseText, example string) (Text, error) {
	text, err := parseIfSet(field, from, parse)
	if err == nil && text != nil && text.Fixed() {
		want := "text with a placeholder, such as " + example + ": all requests would have the same"
		err = &ratelimit.FieldError{Field: field, Value: from[field], Want: want}
	}
	return text, err
}
