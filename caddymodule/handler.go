package caddymodule

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler limits how many requests pass. It counts in Postgres, so that all
// proxies on one database enforce one limit together.
//
// Every response has `X-RateLimit-Limit`, `X-RateLimit-Remaining` and
// `X-RateLimit-Reset` (Unix seconds) of the limit with the least remaining. A
// request over a limit is refused with status 429 and `Retry-After`, in whole
// seconds. If the site has error routes (`handle_errors`) for this status,
// these routes respond, and can use the placeholders below. Otherwise the body
// is `{"error":"Too many requests","retryAfter":N}`.
//
// Placeholder | Description
// ------------|------------
// `{http.pg_ratelimit.prefix}` | The prefix of the limit that refused the request
// `{http.pg_ratelimit.key}` | The key as it is stored: a digest if it is a secret
// `{http.pg_ratelimit.limit}` | The full quota
// `{http.pg_ratelimit.remaining}` | How much of the quota remains
// `{http.pg_ratelimit.retry_after}` | Seconds until the request would pass; empty if it never would
//
// A placeholder without a value is empty. Requests that pass have the first four, of the limit with the least
// remaining, if the server writes access logs.
//
// If an app `events` is configured, a refusal emits the event `pg_ratelimit.refused`, at most one a second, with
// `prefix`, `key`, `wait` (seconds), `status`, `reason` (of a refusal by the policy alone) and `skipped` (how many
// refusals had no event since). If the request has a span of `tracing`, the decision is an event on the span.
//
// If there is no decision within the timeout, `on_error` says whether the
// request passes. A request that does not pass gets status 503 and the body
// `{"error":"Service unavailable"}`, unless error routes respond.
//
// The handler evaluates the matchers of the error routes to find out whether
// one will respond. A route that matches counts as a response, even if it only
// sets a header. Path matchers see the path as it was before a rewrite.
// Placeholders in matchers see the path as it is after the rewrite.
//
// Caddy's metrics contain `caddy_pg_ratelimit_decisions_total` (by prefix,
// outcome and source of the decision), the histogram
// `caddy_pg_ratelimit_decision_duration_seconds`, the gauge
// `caddy_pg_ratelimit_database_up`, and others that docs/metrics.md lists.
//
// A handler with zones may have no limit of its own.
type Handler struct {
	LimitSettings

	// Where to count: a Postgres address, as a URL
	// (`postgres://user@host/database`) or as `key=value` pairs, or `memory`
	// for this process alone. May contain placeholders such as `{env.NAME}`.
	// Default: that of the app `pg_ratelimit`, or else the environment
	// variable DATABASE_URL.
	DSN string `json:"dsn,omitempty"`

	// How long the database may take for a statement, from 1ms to 1m. After that
	// `on_error` applies. While the database answers, a request waits for up to
	// four timeouts, and gets status 503 then. Default: 250ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// What happens to a request while the database does not answer: `allow`
	// lets it pass, `deny` refuses it with status 503, and with `local` this
	// process decides at its share of each limit. Default: `allow`.
	OnError string `json:"on_error,omitempty"`

	// With `on_error local`: the share of this process, such as `50%`. Default:
	// that of one of the proxies that were in the registry last.
	LocalShare string `json:"local_share,omitempty"`

	// Which X-RateLimit headers a response has if the upstream sends some, too:
	// those of the limit (`auto`, and `ours`, which is the same in Caddy), those that
	// tell of less remaining (`tighter`), or all of them (`both`). Default: `auto`.
	Headers string `json:"headers,omitempty"`

	// Which fields of a response describe the limits: `X-RateLimit-*` (`x`),
	// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11
	// (`ietf`), or all of them (`x ietf`). Default: `x`.
	Fields string `json:"fields,omitempty"`

	// Networks and addresses whose requests pass all limits here, uncounted, such as
	// `10.0.0.0/8 192.0.2.7`. The address is the client's, which honours
	// `trusted_proxies`. The rules of a policy apply. Default: none.
	Exempt string `json:"exempt,omitempty"`

	// The name of a header and a secret of 16 characters or more. Requests with the
	// secret in the header pass all limits here, uncounted. The upstream does not get
	// the header. Use a placeholder such as `X-Internal {env.SECRET}`: Caddy's admin
	// API shows the text. Default: none.
	ExemptHeader string `json:"exempt_header,omitempty"`

	// Further limits on the same request: it passes if all limits that match it
	// have room, and is charged to all of them or to none.
	Zones []*Zone `json:"zones,omitempty"`

	// The policy in the database, which applies to the same requests: what it says
	// and all limits here are decided together. A handler with a policy may have no
	// limit of its own. Default: none.
	Policy *Policy `json:"policy,omitempty"`

	logger         *zap.Logger
	site           *edge.Site
	headers        edge.HeaderPolicy
	exempt         edge.ExemptSettings
	store          *store
	counters       []counters      // of site.Zones
	policy         *policyCounters // nil without a policy
	noUser         atomic.Bool     // the log has a warning that no authentication came before
	settlements    *prometheus.CounterVec
	invalid        edge.Sampler // of costs of responses, in the log
	duration       prometheus.Observer
	events         *events      // nil without the app events
	watched        atomic.Int32 // see isWatched
	hasErrorRoutes bool         // of a subroute around the handler
	ends           []func()     // called by Cleanup
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.pg_ratelimit", New: func() caddy.Module { return new(Handler) }}
}

// Provision sets up the handler.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	h.hasErrorRoutes = inSubrouteWithErrorRoutes(ctx)
	if err := h.provision(ctx); err != nil {
		if h.Prefix != "" {
			return fmt.Errorf("pg_ratelimit %q: %w", h.Prefix, err)
		}
		return fmt.Errorf("pg_ratelimit: %w", err)
	}
	return nil
}

func (h *Handler) provision(ctx caddy.Context) error {
	if err := h.compile(); err != nil {
		return err
	}
	for i, z := range h.Zones {
		loaded, err := ctx.LoadModule(z, "MatcherSetsRaw")
		if err != nil {
			return fmt.Errorf("%s: match: %w", z.name(i), err)
		}
		var matchers caddyhttp.MatcherSets
		if err := matchers.FromInterface(loaded); err != nil {
			return fmt.Errorf("%s: match: %w", z.name(i), err)
		}
		if len(matchers) > 0 {
			own := len(h.site.Zones) - len(h.Zones)
			h.site.Zones[own+i].Match = matchers.AnyMatchWithError
		}
	}
	var err error
	if h.site.Exempt, err = h.exempt.Compile(func(text string) (string, error) { return caddy.NewReplacer().ReplaceOrErr(text, true, true) }); err != nil {
		return err
	}
	if h.events, err = openEvents(ctx); err != nil {
		return err
	}
	loaded, err := ctx.App("pg_ratelimit")
	if err != nil {
		return err
	}
	app := loaded.(*App)
	timeout := h.site.Decider.Timeout
	if h.store, err = app.store(h.DSN, timeout); err != nil {
		return err
	}
	h.site.Fields.Salt = h.store.salt
	h.site.Decider.UseStore(h.store.Store) // Take asks it whether limits are paused
	h.duration = app.metrics.duration
	h.settlements = app.metrics.settlements
	var policyStore *store
	if h.site.Policy != nil {
		h.policy = app.metrics.policy
		at := h.store
		if h.Policy.DSN != "" {
			if at, err = app.store(h.Policy.DSN, timeout); err != nil {
				return fmt.Errorf("policy: %w", err)
			}
			if at.db == nil {
				return fmt.Errorf("policy: %w", edge.PolicyNeedsPostgres())
			}
		}
		if h.site.Policy.Live, err = app.policy(ctx, h.store, at, h.site.Policy.Settings); err != nil {
			return err
		}
		policyStore = at
	}
	historyStore, err := h.openHistory(app)
	if err != nil {
		return err
	}
	app.addDatasets(h.store, policyStore, historyStore)
	h.count(app.metrics)
	h.site.Warnings(func(z *edge.Zone, w edge.Warning) {
		h.logger.Warn(w.Field+" "+w.Text, zap.String("prefix", z.Limit.Prefix))
	})
	h.ends = append(h.ends, h.site.Prepare(), edge.Show(h.site))
	return nil
}

// count makes the counters of the limits.
func (h *Handler) count(m *metrics) {
	h.counters = nil
	for _, z := range h.site.Zones {
		h.counters = append(h.counters, m.counters(z, h.store))
	}
}

// Cleanup has pages show the handler no more, and gives up the lines of its limits.
func (h *Handler) Cleanup() error {
	for _, end := range h.ends {
		end()
	}
	h.ends = nil
	return nil
}

// compile checks the configuration, and sets up the fields that need nothing from Caddy.
// The parser of the Caddyfile calls compile too, so that an error names the line.
func (h *Handler) compile() error {
	var read edge.Settings
	if err := edge.Read(edge.HandlerTable, reflect.ValueOf(h), &read); err != nil {
		return err
	}
	h.headers, h.exempt = read.Headers, read.Exempt
	h.site = &edge.Site{
		Decider: edge.Decider{Timeout: read.Timeout, OnError: read.OnError, Share: read.LocalShare}, Fields: read.Fields,
		Address: clientAddress, Watcher: watcher{h}, Empty: h.warnOfEmptyKey, Settled: h.settled,
	}
	if _, err := edge.ParseAudit(h.Audit, history.Audit{}); err != nil {
		return err
	}
	var err error
	if h.Policy != nil {
		if h.site.Policy, err = h.Policy.compile(); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	if len(h.Zones) > 0 && h.isSet() && h.Limit == "" && h.Limits == "" {
		return edge.LimitMissing(h.Prefix, h.Key)
	}
	if h.isSet() || len(h.Zones) == 0 && h.Policy == nil {
		if err := h.addZone(&h.LimitSettings); err != nil {
			return err
		}
	}
	for i, z := range h.Zones {
		if z == nil {
			return fmt.Errorf("zone %d: null: must be an object", i+1)
		}
		if err := h.addZone(&z.LimitSettings); err != nil {
			return &zoneError{i, z.name(i), err}
		}
	}
	if at, err := edge.CheckRows(h.site.Zones); err != nil {
		i := at - (len(h.site.Zones) - len(h.Zones))
		return &zoneError{i, h.Zones[i].name(i), err}
	}
	return nil
}

// addZone compiles a limit.
func (h *Handler) addZone(s *LimitSettings) error {
	z, err := edge.NewZone(reflect.ValueOf(s), parseText)
	if err != nil {
		return err
	}
	return h.site.Add(z)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
