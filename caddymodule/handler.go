package caddymodule

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler limits how many requests pass. It counts in Postgres, so that all proxies on one database enforce
// one limit together.
//
// Every response has `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (Unix seconds) of
// the limit with the least remaining. They describe a limit `in_flight` only if no other limit applies. A
// request over a limit is refused with status 429 and `Retry-After`, in whole seconds. If the site has error
// routes (`handle_errors`) for this status, these routes respond, and can use the placeholders below.
// Otherwise the body is `{"error":"Too many requests","retryAfter":N}`.
//
// Placeholder | Description
// ------------|------------
// `{http.pg_ratelimit.outcome}` | What the handler did with the request (docs/operating.md#outcomes)
// `{http.pg_ratelimit.reason}` | Why, if no limit decided (docs/generated/placeholders.md#reasons)
// `{http.pg_ratelimit.prefix}` | The prefix of the limit that refused the request, or has the least remaining
// `{http.pg_ratelimit.key}` | The key as it is stored: a digest if it is a secret
// `{http.pg_ratelimit.limit}` | The full quota
// `{http.pg_ratelimit.remaining}` | The remaining quota
// `{http.pg_ratelimit.reset}` | The time of `X-RateLimit-Reset`
// `{http.pg_ratelimit.retry_after}` | Seconds until the request would pass; empty if it never would
// `{http.pg_ratelimit.exceeded}` | The prefix of a limit that let the request pass beyond its quota
// `{http.pg_ratelimit.exceeded_by}` | The number of units, or the money, beyond that quota
//
// A placeholder without a value is empty. A limit lets a request pass beyond its quota with `overage`, or in
// the mode `shadow`.
//
// If an app `events` is configured, a refusal emits the event `pg_ratelimit.refused`, at most one a second,
// with `outcome`, `reason`, `prefix`, `key`, `wait` (seconds), `status` and `skipped` (how many refusals had
// no event since). If the request has a span of `tracing`, the decision is an event on the span.
//
// Without a decision within the timeout, `on_error` selects whether the request passes. A request that does
// not pass gets status 503 and the body `{"error":"Service unavailable"}`, unless error routes respond.
//
// The handler evaluates the matchers of the error routes to find out whether one will respond. A route that
// matches counts as a response, even if it only sets a header. Path matchers see the path as it was before a
// rewrite. Placeholders in matchers see the path as it is after the rewrite.
//
// Caddy's metrics contain `caddy_pg_ratelimit_decisions_total` (by prefix, outcome and source of the
// decision), the histogram `caddy_pg_ratelimit_decision_duration_seconds`, the gauge
// `caddy_pg_ratelimit_database_up`, and others that docs/generated/metrics.md lists.
//
// A handler with zones may have no limit of its own.
type Handler struct {
	LimitSettings
	HandlerSettings

	// Further limits on the same request. It passes if all limits that match it have room, and is charged to
	// all of them or to none.
	Zones []*Zone `json:"zones,omitempty"`

	// The policy in the database, which applies to the same requests. Its limits and all limits here are
	// decided together. A handler with a policy may have no limit of its own. Default: none.
	Policy *Policy `json:"policy,omitempty"`

	logger         *zap.Logger
	site           *serve.Site
	databases      *host.Databases
	metrics        *metrics
	noUser         atomic.Bool      // warnOfOrder has warned
	events         *caddyevents.App // nil without the app events
	ctx            caddy.Context    // the context for events
	refusals       host.Sampler     // bounds events
	hasErrorRoutes bool             // the subroute around the handler has error routes
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.pg_ratelimit",
		New: func() caddy.Module { return new(Handler) }}
}

// Provision compiles the settings, and opens the handler's databases without connecting.
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
		var matchers caddyhttp.MatcherSets
		if err == nil {
			err = matchers.FromInterface(loaded)
		}
		if err != nil {
			return fmt.Errorf("%s: match: %w", serve.ZoneName(i, string(z.Prefix)), err)
		}
		if len(matchers) > 0 {
			own := len(h.site.Zones) - len(h.Zones)
			h.site.Zones[own+i].Match = matchers.AnyMatchWithError
			h.site.Zones[own+i].Endpoint = pathsOf(matchers)
		}
	}
	loaded, err := ctx.AppIfConfigured("events")
	if err == nil {
		h.events, h.ctx = loaded.(*caddyevents.App), ctx
	} else if !errors.Is(err, caddy.ErrNotConfigured) {
		return err
	}
	if loaded, err = ctx.App("pg_ratelimit"); err != nil {
		return err
	}
	app := loaded.(*App)
	if h.databases, err = app.open(h); err != nil {
		return err
	}
	h.metrics = app.metrics
	for _, z := range h.site.Zones {
		h.metrics.initSeries(z, h.databases.Limits.DB == nil)
	}
	return nil
}

// pathsOf returns the path patterns of matchers, for the history.
func pathsOf(sets caddyhttp.MatcherSets) string {
	var paths []string
	for _, set := range sets {
		for _, matcher := range set {
			switch m := matcher.(type) {
			case *caddyhttp.MatchPath:
				paths = append(paths, *m...)
			case *caddyhttp.MatchPathRE:
				paths = append(paths, m.Pattern)
			}
		}
	}
	return strings.Join(paths, " ")
}

// Cleanup releases the handler's handle on its databases.
func (h *Handler) Cleanup() error {
	if h.databases != nil {
		h.databases.Release()
	}
	return nil
}

// compile validates the settings and sets the fields that do not depend on a running Caddy. The Caddyfile
// parser also calls compile, so that errors name the line.
func (h *Handler) compile() error {
	c := serve.Configuration{
		Handler: Values(h), Policy: Values(h.Policy), Parse: parseText,
	}
	for i, z := range h.Zones {
		if z == nil {
			return fmt.Errorf("zone %d: null: must be an object", i+1)
		}
		c.Zones = append(c.Zones, Values(z))
	}
	site, err := c.Compile()
	if err != nil {
		return err
	}
	site.Clients.Address, site.UserOf, site.Watcher = clientAddress, authenticated, h
	site.Log = func(line host.Line) { logLine(h.logger, line) }
	site.OnUsage = func(u *serve.Usage) { h.metrics.countUsage(u) }
	site.OnSettled = func(prefix string, cost serve.SettledCost) {
		h.metrics.settlements.WithLabelValues(prefix, string(cost)).Inc()
	}
	h.site = site
	return nil
}

// Zone is one of several limits on a request. A request passes if all limits that match it have room, and is
// charged to all of them or to none.
type Zone struct {
	// The limit applies to the requests that one of the matcher sets matches, as in a route. Default: all
	// requests.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	LimitSettings
	ZoneSettings
}

// Interface guards
var (
	_ caddy.Provisioner  = (*Handler)(nil)
	_ caddy.CleanerUpper = (*Handler)(nil)
)
