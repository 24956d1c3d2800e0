package caddymodule

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// Policy applies the rules in the database: which limits apply to whom is data there, and
// all proxies obey a change within `refresh`. It needs Postgres 15 or newer.
//
// Placeholder | Description
// ------------|------------
// `{http.pg_ratelimit.user}` | The user of the request; empty if it is nobody's
// `{http.pg_ratelimit.tier}` | The tier of the request
// `{http.pg_ratelimit.key_id}` | The number of the API key in the database; empty without one
// `{http.pg_ratelimit.rule}` | The rule that refused or exempted the request, or else the first that charges it
// `{http.pg_ratelimit.reason}` | Why the policy alone refused the request: unknown_key, key_expired, key_revoked, banned, blocked or no_quota
type Policy struct {
	// The database of the policy, if it is another one than that of the limits: a Postgres
	// address, as in the handler's `dsn`. Default: that of the limits.
	DSN string `json:"dsn,omitempty"`

	// The API key of a request: text with a placeholder, such as
	// `{http.request.header.X-Api-Key}`. "Bearer " at its beginning is cut off.
	// Default: requests have no API key.
	APIKey string `json:"api_key,omitempty"`

	// The user of a request without an API key, if Caddy authenticates users before
	// this handler: text with a placeholder, such as `{http.auth.user.id}`.
	// Default: such a request is nobody's.
	User string `json:"user,omitempty"`

	// The tier of requests that have no other one. May contain placeholders; a
	// tier that is empty is the default. Default: `anonymous`.
	Tier string `json:"tier,omitempty"`

	// What happens to a request with an unknown, expired or revoked API key: `reject` refuses it
	// with status 401, `anonymous` treats it as one without a key. Default: `reject`.
	UnknownKey string `json:"unknown_key,omitempty"`

	// The name of the route, for rules that count by route. May contain
	// placeholders. Default: none.
	Route string `json:"route,omitempty"`

	// How often to ask the database for changes, from 50ms to 1m. Default:
	// 500ms.
	Refresh caddy.Duration `json:"refresh,omitempty"`

	// The most API keys and users to remember, from 1 to 10,000,000. Default:
	// 100,000.
	MaxIdentities int `json:"max_identities,omitempty"`
}

// compiledPolicy is a Policy that was compiled, and the policy of its database.
type compiledPolicy struct {
	live     *edge.ProxyPolicy
	counters *policyCounters

	settings               edge.PolicySettings
	key, user, tier, route template
	reject                 bool        // requests with keys that are not valid
	keys                   []string    // the placeholders in key
	headers                []string    // the request headers among them
	noUser                 atomic.Bool // the log has a warning that no authentication came before
}

// compile checks the settings. Errors are *ratelimit.FieldError, with the names of the
// Caddyfile's subdirectives.
func (p *Policy) compile() (*compiledPolicy, error) {
	a := &compiledPolicy{}
	var err error
	if a.key, err = parseSender("api_key", p.APIKey, "{header.X-Api-Key}"); err != nil {
		return nil, err
	}
	a.keys, _ = placeholdersIn(a.key.text)
	for _, name := range a.keys {
		if header, ok := strings.CutPrefix(name, "http.request.header."); ok {
			a.headers = append(a.headers, http.CanonicalHeaderKey(header))
		}
	}
	if a.user, err = parseSender("user", p.User, "{http.auth.user.id}"); err != nil {
		return nil, err
	}
	if a.tier, err = parseTemplate("tier", p.Tier); err != nil {
		return nil, err
	}
	if a.route, err = parseTemplate("route", p.Route); err != nil {
		return nil, err
	}
	var read edge.Settings
	if err := edge.Read(edge.PolicyTable, reflect.ValueOf(p), &read); err != nil {
		return nil, err
	}
	a.settings, a.reject = read.Policy, read.RejectUnknown
	return a, nil
}

func (p *Policy) check() error {
	_, err := p.compile()
	return err
}

// hasKey reports whether the text of a limit's key contains a part of the API key.
func (a *compiledPolicy) hasKey(text string) bool {
	names, _ := placeholdersIn(text)
	return slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc(a.keys, func(of string) bool { return strings.EqualFold(of, name) })
	})
}
