package caddymodule

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// LimitSettings are one limit: what it allows, and what is counted together.
type LimitSettings struct {
	// The limit's name, and the namespace of its keys: limits with the same
	// prefix on the same database share their counters, in all proxies. 1 to
	// 255 bytes of UTF-8. Required.
	Prefix string `json:"prefix,omitempty"`

	// What is counted together: requests with the same key share the quota.
	// Text with placeholders. All requests with an empty key share one quota.
	// Of alternatives, as in `{http.request.header.X-Api-Key} | {client_ip}`, the
	// first that is not empty is the key, stored with its number before it.
	// Default: `{http.vars.client_ip}`, the client's address, which honours
	// `trusted_proxies`.
	Key string `json:"key,omitempty"`

	// How requests are counted: `sliding_window` (smooth, two counters a key;
	// the default), `fixed_window` (from the first request until the window
	// has passed, or on the calendar), `token_bucket` (refilled with the
	// limit's events every window, holding up to `burst`), `sliding_log`
	// (exact, up to 1,000 events), `gcra` (evenly spaced, up to `burst` at
	// once) or `in_flight` (how many requests run at once).
	Algorithm string `json:"algorithm,omitempty"`

	// How much may pass in what time, such as `100 1m` or `100/1m`. Units are
	// ms, s, m, h, d and w. A fixed window may follow the calendar:
	// `10000 1d calendar` or `10000 1mo calendar Europe/Berlin`. The default
	// time zone is UTC. For `in_flight`: how many requests may run at once, such
	// as `5`. Required.
	Limit string `json:"limit,omitempty"`

	// Instead of `limit`: a limit for each value of a placeholder, and one for all
	// other values, such as `{http.request.header.X-Plan} gold 1000 1m, free 10 1m,
	// default 5 1m`. The limits are for the same time, and a key has one counter
	// for all of them. Default: none.
	Limits string `json:"limits,omitempty"`

	// The most that may pass at once, for `token_bucket` and `gcra`. Default:
	// the limit's events. No other algorithm has a burst.
	Burst *int64 `json:"burst,omitempty"`

	// How much of the quota a request takes: a whole number of 1 or more, or a
	// placeholder that gives one. If it gives anything but a whole number, the
	// request costs 1. Default: 1.
	Cost string `json:"cost,omitempty"`

	// The least that a request costs if a placeholder gives its cost. Clients often choose what
	// a placeholder gives. With 0, a request of cost 0 passes while some quota is left, and is
	// charged nothing. Default: 1.
	MinCost *int64 `json:"min_cost,omitempty"`

	// What a request really cost, by its response; `cost` is the estimate, which is charged
	// first. `header X-Tokens` (removed from the response), `bytes` (of the body),
	// `json usage.total_tokens` (of the body, or of the last event of an event stream), or
	// `status 401 403 = 1, else 0`. Default: what it was charged.
	Settle string `json:"settle,omitempty"`

	// Count in the table that survives a crash of the database server
	// (billing, quotas) rather than in the faster one that does not (abuse).
	Durable bool `json:"durable,omitempty"`

	// Wait until the decision is flushed to the database server's disk. Without
	// it, a crash loses the last fraction of a second. It has no effect unless
	// the limit is durable.
	SynchronousCommit bool `json:"synchronous_commit,omitempty"`

	// The largest share of what is left that this process may hold of one key in
	// advance, such as `5%`: from 0.1% to 50%. Requests pass without asking the
	// database while it holds some. No more passes than the limit allows. For
	// `sliding_window`, `fixed_window` without a calendar and `token_bucket`.
	// Default: none.
	Lease string `json:"lease,omitempty"`

	// How many counters the prefix has in the database, about. Beyond it, counters that have
	// used 1 are deleted, those first that expire first. Not for `in_flight`, `lease` and
	// `durable`. Default: no bound.
	MaxKeys *int64 `json:"max_keys,omitempty"`

	// Store keys as SHA-256 digests, so that they cannot be read from the database. Default:
	// true if the key has a placeholder of a credential (Authorization; any cookie; a header, a
	// query parameter or a user's property with a name like token, secret, password or api-key;
	// the whole query; that of `api_key` in this handler's policy), else false. Proxies that
	// share counters must set it alike.
	HashKey *bool `json:"hash_key,omitempty"`

	// If a placeholder in the key gives an IPv4 address: how many of its bits
	// count. The addresses of a network of that size share the quota. 1 to
	// 32. Default: all.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`

	// The same for IPv6. The addresses of a network share the quota, because a
	// client can often choose any address of a /64. 1 to 128. Default: 64.
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	// Ban the sender of refused requests: `1h after 10 refusals in 1m`. All proxies
	// count refusals together. Each further ban lasts twice as long as the one
	// before, up to a year. The API key is banned, or else the user, or else the
	// client's address (the /64 of an IPv6 address). It needs a policy. Default:
	// none.
	Ban string `json:"ban,omitempty"`

	// Which requests are in the audit log of the history: `denied` (those that were
	// refused), `sample` and a percentage (also a random share of those that passed,
	// as in `sample 1%`), `all` or `off`. In a zone the default is that of the
	// handler. If several limits apply to a request, the one that records the most
	// counts. A value other than `off` turns the history on, which needs Postgres.
	// Default: `denied` if the app `pg_ratelimit` has a `history`, else `off`.
	Audit string `json:"audit,omitempty"`

	// How long a request over the limit waits for its turn instead of being refused,
	// such as `up to 2s`, and how many requests may wait for the limit at once in this
	// process, as in `up to 2s at most 100`. Default: none; at most 1,000.
	Wait string `json:"wait,omitempty"`

	// `enforce`, `shadow` (count, report what it would have refused, and refuse
	// nothing) or `off`. Default: `enforce`.
	Mode string `json:"mode,omitempty"`
}

// isSet reports whether there is any setting of a limit. A handler with zones may have no
// limit of its own, and its Audit is for the zones and the policy.
func (r *LimitSettings) isSet() bool {
	limit := *r
	limit.Audit = ""
	return limit != LimitSettings{}
}

// Zone is one of several limits on a request. A request passes if all limits
// that match it have room, and is charged to all of them or to none.
type Zone struct {
	// Which requests the limit is for, as in a route: those that one of the
	// matcher sets matches. Default: all.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	LimitSettings
}

// name returns the name of the zone in errors. i is the index in Handler.Zones.
func (z *Zone) name(i int) string {
	if z.Prefix == "" {
		return "zone " + strconv.Itoa(i+1)
	}
	return "zone " + strconv.Quote(z.Prefix)
}

// zoneError is an error about a zone.
type zoneError struct {
	at   int // its index in Handler.Zones
	name string
	err  error
}

func (e *zoneError) Error() string { return e.name + ": " + e.err.Error() }

func (e *zoneError) Unwrap() error { return e.err }
