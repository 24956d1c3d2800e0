package caddymodule

import (
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/caddymodule/command"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func init() {
	caddy.RegisterModule(new(App))
	caddycmd.RegisterCommand(command.New(expandDSN))
}

// App has the defaults of all `pg_ratelimit` handlers, and the databases that
// they count in. Handlers with the same `dsn` share one pool of connections,
// which is kept when a config is reloaded.
type App struct {
	StoreSettings

	// Record what happens to requests in the databases: an audit log, metrics by
	// minute, hour and day, and the usage of users and API keys. `{}` turns it on for
	// all handlers. Default: only for handlers with an `audit` of their own.
	History *History `json:"history,omitempty"`

	metrics *metrics
	used    []use               // what the handlers share; what is on a store comes after the store
	longest time.Duration       // the longest timeout of any handler
	http    func() (any, error) // the app with the handlers, when all apps are set up
	pages   []*Page

	datasets map[string]datasets // by the DSN of the limits
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "pg_ratelimit", New: func() caddy.Module { return new(App) }}
}

// Provision sets up the app.
func (a *App) Provision(ctx caddy.Context) error {
	a.http = func() (any, error) { return ctx.AppIfConfigured("http") }
	if _, err := a.settings(); err != nil {
		return err
	}
	if err := edge.CheckEnvironment(); err != nil {
		return err
	}
	if _, err := a.History.compile(); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	var err error
	a.metrics, err = newMetrics(ctx.GetMetricsRegistry())
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// settings are the app's settings, without a DSN.
func (a *App) settings() (edge.StoreSettings, error) {
	var read edge.Settings
	from := values(&a.StoreSettings)
	if from["region"] == "" && a.History != nil {
		from["region"] = string(a.History.Region)
	}
	if err := expandNames(from, "node_name", "region"); err != nil {
		return read.Store, err
	}
	err := edge.Read(edge.StoreTable, from, &read)
	return read.Store, err
}

// store returns the store for a handler's DSN, or for that of a policy. "" is the app's DSN.
func (a *App) store(dsn string, timeout time.Duration) (*store, error) {
	if dsn == "" {
		dsn = string(a.DSN)
	}
	return a.database(dsn, timeout, nil)
}

// database returns the store for a DSN. If there are limits, the database is for their history only: it is
// their store, or one in which nothing is counted.
func (a *App) database(dsn string, timeout time.Duration, limits *store) (*store, error) {
	withPassword := holdsPassword(dsn)
	dsn, shown, err := expandDSN(dsn)
	if err != nil {
		return nil, err
	}
	settings, err := a.settings()
	if err != nil {
		return nil, err
	}
	settings.DSN = dsn
	if settings, err = settings.Resolve("here, in the global option pg_ratelimit,"); err != nil {
		return nil, err
	}
	if limits != nil {
		switch settings.DSN {
		case edge.MemoryDSN:
			return nil, edge.HistoryNeedsPostgres()
		case limits.settings.DSN:
			return limits, nil
		}
		settings.HistoryOnly = true
	}
	a.longest = max(a.longest, timeout)
	s, err := share(a, settings, func() (*store, error) { return openStore(settings, shown) })
	if err != nil {
		return nil, err
	}
	if withPassword && s.warned.CompareAndSwap(false, true) {
		caddy.Log().Named(logName).Warn(edge.PasswordWarning)
	}
	return s, nil
}

// Start logs the version, connects to the databases, in the background, and warns of handlers that charge a
// request twice. Provision does not connect, because a config that is only validated, or that
// fails to load, must not touch a database.
func (a *App) Start() error {
	caddy.Log().Named(logName).Info("rate limits are enforced", zap.String("version", version()))
	for _, u := range a.used {
		u.Prepare()
	}
	if a.http == nil {
		return nil
	}
	loaded, err := a.http()
	if app, ok := loaded.(*caddyhttp.App); ok && err == nil { // without it there are no handlers
		for _, server := range app.Servers {
			warnOfDoubleCharges(routedHandlers(server.Routes, nil))
		}
		return a.openPages(app.Servers)
	}
	return nil
}

// Stop does nothing, because requests may still be in flight. See Cleanup.
func (a *App) Stop() error { return nil }

// closeDelay is how long the stores of a config stay open after the config has ended, in
// addition to the longest timeout: the last requests of the config may not have reached a
// handler yet. A config that is loaded within this time uses the same connections. If the
// DSN is memory, it also uses the same counts.
const closeDelay = 30 * time.Second

// Cleanup closes all histories and stores if the process ends, which writes what is pending and gives
// back the units of leases. Otherwise it releases them after closeDelay, when no request of this
// config waits for a decision any more.
func (a *App) Cleanup() error {
	if caddy.Exiting() {
		a.used = nil
		closeAll[*archiver]()
		closeAll[*history.Writer]()
		closeAll[*store]()
		return nil
	}
	a.release(closeDelay + a.longest)
	return nil
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
