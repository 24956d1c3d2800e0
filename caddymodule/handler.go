package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler limits how many requests pass, counting in Postgres, so that all
// proxies on one database enforce one limit.
//
// Every answer carries `X-RateLimit-Limit`, `X-RateLimit-Remaining` and
// `X-RateLimit-Reset` (Unix seconds) of the limit with the least left. A
// request over a limit is refused with status 429 and `Retry-After`, in whole
// seconds. Where the site has error routes for that (`handle_errors`), they
// answer, with these placeholders to use; elsewhere the body is
// `{"error":"Too many requests","retryAfter":N}`.
//
// Placeholder | Description
// ------------|------------
// `{http.pg_ratelimit.prefix}` | The prefix of the limit that refused the request
// `{http.pg_ratelimit.key}` | The key, as it is stored: a digest where it is a secret
// `{http.pg_ratelimit.limit}` | The full quota
// `{http.pg_ratelimit.remaining}` | What is left of it
// `{http.pg_ratelimit.retry_after}` | Seconds until the request would pass; empty if it never would
//
// All of them are empty where they make no sense. A request for which no
// decision can be had within the timeout passes, or is refused with status 503
// and the body `{"error":"Service unavailable"}`, again unless error routes
// answer. Whether they will is found out by asking their matchers beforehand;
// a route that matches counts as one that answers, even if all it does is to
// set a header. Placeholders in such matchers see a rewritten path as it is
// after the rewrite, the path matchers themselves as it was before.
//
// The metrics `pg_ratelimit_decisions_total` (by prefix and outcome: allowed,
// denied, error) and `pg_ratelimit_blocked_total` (by prefix) are among Caddy's.
//
// The limit of the handler's own may be left out where there are zones.
type Handler struct {
	Rule

	// Where to count: a Postgres address, as a URL
	// (`postgres://user@host/database`) or as `key=value` pairs, or `memory`
	// for this process alone. May hold placeholders such as `{env.NAME}`.
	// Default: that of the app `pg_ratelimit`, or else the environment
	// variable DATABASE_URL.
	DSN string `json:"dsn,omitempty"`

	// How long a decision may take, all limits together, from 1ms to 1m. After
	// that `on_error` rules. Default: 250ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// What becomes of a request while the database does not answer: `allow`
	// lets it pass, `deny` answers 503. Default: `allow`.
	OnError string `json:"on_error,omitempty"`

	// Further limits on the same request: it passes if all that match it have
	// room, and is charged to all of them or to none.
	Zones []*Zone `json:"zones,omitempty"`

	logger       *zap.Logger
	gate         edge.Gate
	store        *store
	zones        []*zone
	errorsCaught bool
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.pg_ratelimit", New: func() caddy.Module { return new(Handler) }}
}

// Provision sets up the handler.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	h.errorsCaught = catchesErrors(ctx)
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
		of := h.zones[len(h.zones)-len(h.Zones)+i]
		if err := of.matchers.FromInterface(loaded); err != nil {
			return fmt.Errorf("%s: match: %w", z.name(i), err)
		}
	}
	loaded, err := ctx.App("pg_ratelimit")
	if err != nil {
		return err
	}
	app := loaded.(*App)
	if h.store, err = app.store(h.DSN, h.gate.Timeout); err != nil {
		return err
	}
	h.gate.Store = h.store
	for _, z := range h.zones {
		z.counters = app.metrics.counters(z.limit.Prefix)
		for _, doubt := range edge.Doubts(z.limit, z.cost) {
			h.logger.Warn(doubt, zap.String("prefix", z.limit.Prefix))
		}
	}
	return nil
}

// compile checks the configuration and sets up what needs nothing from Caddy.
// It does so for the Caddyfile's parser, too.
func (h *Handler) compile() error {
	var err error
	if h.gate.Timeout, err = edge.CheckTimeout(time.Duration(h.Timeout)); err != nil {
		return err
	}
	if h.gate.OnError, err = edge.ParseOnError(h.OnError); err != nil {
		return err
	}
	h.zones = nil
	if h.isSet() || len(h.Zones) == 0 {
		own, err := h.Rule.compile()
		if err != nil {
			return err
		}
		h.zones = append(h.zones, own)
	}
	for i, z := range h.Zones {
		if z == nil {
			return fmt.Errorf("zone %d: null: must be an object", i+1)
		}
		compiled, err := z.Rule.compile()
		if err != nil {
			return &zoneError{i, z.name(i), err}
		}
		h.zones = append(h.zones, compiled)
	}
	if at, err := checkRows(h.zones); err != nil {
		i := at - (len(h.zones) - len(h.Zones))
		return &zoneError{i, h.Zones[i].name(i), err}
	}
	return nil
}

// ServeHTTP lets the request pass, or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	passes, err := h.decide(w, r)
	if err != nil || !passes {
		return err
	}
	return next.ServeHTTP(w, r)
}

// decide asks the store about the request and answers it where it is refused,
// or returns an error for others to answer.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request) (passes bool, err error) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		repl = caddy.NewReplacer()
	}
	c := spareClaims.Get().(*claims)
	defer c.release()
	for _, z := range h.zones {
		matches, err := z.matchers.AnyMatchWithError(r)
		if err != nil {
			return false, err
		}
		if matches {
			c.add(z, z.hit(r, repl))
		}
	}
	// Not the request's context: a client that goes away must not spoil what
	// it shares a statement with. The timeout bounds the wait.
	a := edge.Ask(context.Background(), &h.gate, c.hits, c.decisions)
	h.note(c, &a)
	if a.Status != 0 {
		edge.SetHeaders(w.Header(), &a)
		return false, h.refuse(w, r, repl, c, &a)
	}
	if a.Decision != nil && !lessLeft(w.Header(), a.Decision.Remaining) {
		edge.SetHeaders(w.Header(), &a)
	}
	return true, nil
}

// lessLeft reports whether another handler before this one has told the client
// of a limit with less left.
func lessLeft(header http.Header, remaining int64) bool {
	said := header["X-Ratelimit-Remaining"]
	if len(said) == 0 {
		return false
	}
	n, err := strconv.ParseInt(said[0], 10, 64)
	return err == nil && n < remaining
}

// note counts and logs an answer.
func (h *Handler) note(c *claims, a *edge.Answer) {
	if a.Err != nil {
		for _, z := range c.zones {
			z.counters.failed.Inc()
		}
		h.logFailure(a)
		return
	}
	if len(c.zones) > 0 && h.store.failing.Load() && decidedThere(c.decisions) && h.store.failing.CompareAndSwap(true, false) {
		h.logger.Info("the database answers again")
	}
	for i, z := range c.zones {
		if a.Status == 0 {
			z.counters.allowed.Inc()
		} else if !c.decisions[i].Allowed {
			z.counters.denied.Inc()
			if c.decisions[i].Source == ratelimit.FromBlocked {
				z.counters.blocked.Inc()
			}
		}
	}
	if a.Status == 0 {
		return
	}
	if entry := h.logger.Check(zapcore.DebugLevel, "request refused"); entry != nil {
		hit := &c.hits[a.Hit]
		entry.Write(zap.String("prefix", hit.Limit.Prefix), zap.String("key", storedKey(hit)), zap.Int64("cost", hit.Cost),
			zap.Int64("limit", a.Decision.Limit), zap.Int64("remaining", a.Decision.Remaining), zap.Duration("retry_after", a.Decision.RetryAfter))
	}
}

// decidedThere reports whether the database was asked: what is known to be used up
// is refused without it.
func decidedThere(decisions []ratelimit.Decision) bool {
	for i := range decisions {
		if decisions[i].Source == ratelimit.FromPostgres {
			return true
		}
	}
	return false
}

// logFailure logs that no decision could be had, at most once a second for all
// handlers on the store.
func (h *Handler) logFailure(a *edge.Answer) {
	dropped, ok := h.store.failures.Next(time.Now())
	if !ok {
		return
	}
	h.store.failing.Store(true)
	level, message := zapcore.WarnLevel, "no decision: letting requests pass"
	if a.Status != 0 {
		level, message = zapcore.ErrorLevel, "no decision: refusing requests"
	}
	h.logger.Log(level, message, zap.Error(a.Err), zap.Int64("not_logged", dropped))
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
