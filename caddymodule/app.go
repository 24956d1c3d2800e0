package caddymodule

import (
	"cmp"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

func init() { caddy.RegisterModule(new(App)) }

// App holds the defaults of all `pg_ratelimit` handlers, and their databases. Handlers with the same `dsn`
// share one connection pool, which stays open when a config is reloaded.
type App struct {
	StoreSettings

	// Record requests in the databases: an audit log, metrics by minute, hour and day, and the usage of users
	// and API keys. `{}` turns it on for all handlers. Without it, only handlers that set `audit` are
	// recorded.
	History *History `json:"history,omitempty"`

	store     settings.Connection
	recorded  *settings.History // nil without History
	metrics   *metrics
	handles   []*host.Databases // one for each handler
	conflicts serve.Conflicts   // of all handlers
	ctx       caddy.Context
	settles   bool                // a handler has limits of tokens, or a policy
	sources   []*host.DataSources // of each handler
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "pg_ratelimit", New: func() caddy.Module { return new(App) }}
}

// Provision sets up the app.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx = ctx
	var err error
	if a.store, err = a.storeSettings(); err != nil {
		return err
	}
	if _, err = settings.MigrationDisabled(); err != nil {
		return err
	}
	if a.recorded, err = a.History.compile(); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	a.metrics, err = newMetrics(ctx.GetMetricsRegistry())
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// storeSettings parses the app's settings. The DSN of the result is "", because each handler may have its
// own. See dataSources.
func (a *App) storeSettings() (settings.Connection, error) {
	var read settings.Settings
	texts := Values(a)
	for _, name := range []string{"node_name", "region"} {
		text, err := caddy.NewReplacer().ReplaceOrErr(texts[name], true, true)
		if err != nil {
			return read.Connection, option.Invalid(name, texts[name],
				"a name, or placeholders that give one: "+err.Error())
		}
		texts[name] = text
	}
	err := settings.Read(settings.ConnectionTable, texts, &read)
	return read.Connection, err
}

// open opens the databases of a handler, or shares open ones, and adds them to the metrics.
func (a *App) open(h *Handler) (*host.Databases, error) {
	sources, err := a.dataSources(h)
	if err != nil {
		return nil, err
	}
	place := fmt.Sprintf("the handler number %d", len(a.handles)+1)
	if err := a.conflicts.Add(sources.Limits.DSN, place, h.site.Zones); err != nil {
		return nil, err
	}
	handle, err := h.site.Open(process, sources)
	if err != nil {
		return nil, err
	}
	a.handles = append(a.handles, handle)
	a.settles = a.settles || h.site.CountsTokens()
	a.sources = append(a.sources, sources)
	for _, r := range handle.Resources {
		a.metrics.watch(r)
	}
	return handle, nil
}

// Databases returns the databases of the policy and the history that belong to a database of counters: those
// of the first handler with a policy, and of the first with a history. A DSN is "" without one. They are
// complete when all apps are provisioned.
func (a *App) Databases(dsn string) (policy, history host.DataSource) {
	for _, sources := range a.sources {
		if sources.Limits.DSN != dsn {
			continue
		}
		if sources.Policy != nil && policy.DSN == "" {
			policy = *sources.Policy
		}
		if sources.History != nil && history.DSN == "" {
			history = *sources.History
		}
	}
	return policy, history
}

// dataSources returns the databases of a handler's counters, policy and history.
func (a *App) dataSources(h *Handler) (*host.DataSources, error) {
	dsns := &serve.DSNs{Where: "here, in the global option pg_ratelimit,"}
	var err error
	if dsns.Limits, err = dsnOf(cmp.Or(h.DSN, a.DSN)); err != nil {
		return nil, err
	}
	if h.Policy != nil {
		if dsns.Policy, err = dsnOf(h.Policy.DSN); err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	if a.History != nil {
		if dsns.History, err = dsnOf(a.History.DSN); err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
	}
	return h.site.DataSources(a.store, dsns, string(h.Audit), a.recorded)
}

// Start logs the version and connects to the databases in the background. Provision does not connect, because
// a config that is only validated or that fails to load must not touch a database.
func (a *App) Start() error {
	caddy.Log().Named(logName).Info("rate limits are enforced", zap.String("version", Version()))
	for _, handle := range a.handles {
		handle.Prepare()
	}
	loaded, err := a.ctx.AppIfConfigured("http")
	if app, ok := loaded.(*caddyhttp.App); ok && err == nil { // without it the config has no handlers
		if a.settles && app.GracePeriod == 0 {
			caddy.Log().Named(logName).Warn("grace_period is not set, so a Caddy that stops waits for all " +
				"responses. If it is killed meanwhile, those under limits of tokens cost nothing: " +
				"set grace_period to less than the time after which it would be killed")
		}
	}
	return nil
}

// Stop does nothing, because requests may still be in flight. See Cleanup.
func (a *App) Stop() error { return nil }

// Cleanup closes all shared databases if the process is exiting. Otherwise each handler releases its own
// handle.
func (a *App) Cleanup() error {
	if caddy.Exiting() {
		closeAll()
	}
	return nil
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
