package caddymodule

import (
	"fmt"
	"reflect"
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
	// Where to count, for handlers without a `dsn`: a Postgres address, as a
	// URL (`postgres://user@host/database`) or as `key=value` pairs, or
	// `memory` for this process alone. May contain placeholders such as
	// `{env.NAME}`. Default: the environment variable DATABASE_URL.
	DSN string `json:"dsn,omitempty"`

	// The most connections to each database, from 1 to 1000. A few are enough:
	// one connection carries thousands of decisions a second. Default: the
	// DSN's pool_max_conns, or 8.
	MaxConns *int `json:"max_conns,omitempty"`

	// Create the tables, or upgrade them, on first use. If false, or if the
	// environment variable PG_RATELIMIT_DISABLE_AUTO_MIGRATE is true, you have
	// to do it. Default: true.
	AutoMigrate *bool `json:"auto_migrate,omitempty"`

	// How likely a statement is followed, in the background, by the deletion
	// of expired rows: from 0 (never) to 1 (always). Default: 0.1.
	CleanupProbability *float64 `json:"cleanup_probability,omitempty"`

	// Refuse requests without asking the database if the quota of their key is known to be used
	// up. If another process refunds or resets that quota, it is noticed within a second.
	// Default: true.
	InMemoryBlock *bool `json:"in_memory_block,omitempty"`

	// The most used-up keys that `in_memory_block` remembers, from 1 to
	// 10,000,000. Default: 10,000.
	MaxBlockedKeys *int `json:"max_blocked_keys,omitempty"`

	// The most keys of which this process holds a `lease`, from 1 to 1,000,000.
	// Requests of further keys ask the database. Default: 10,000.
	MaxLeases *int `json:"max_leases,omitempty"`

	// The name of this Caddy in the list of proxies (`caddy pg-ratelimit nodes`), up to
	// 100 bytes. May contain placeholders such as `{env.NAME}`. Several Caddys on one
	// host should each have one. Default: the host name and `/caddy`.
	NodeName string `json:"node_name,omitempty"`

	// Where this Caddy runs, in the list of proxies and in the history, up to 100 bytes. May
	// contain placeholders. Default: that of the history, else none.
	Region string `json:"region,omitempty"`

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
	expanded := *a
	var err error
	if expanded.NodeName, err = nodeText("node_name", a.NodeName); err != nil {
		return edge.StoreSettings{}, err
	}
	if expanded.Region == "" && a.History != nil {
		expanded.Region = a.History.Region
	}
	if expanded.Region, err = nodeText("region", expanded.Region); err != nil {
		return edge.StoreSettings{}, err
	}
	var read edge.Settings
	err = edge.Read(edge.StoreTable, reflect.ValueOf(&expanded), &read)
	return read.Store, err
}

// store returns the store for a handler's DSN, or for that of a policy. "" is the app's DSN.
func (a *App) store(dsn string, timeout time.Duration) (*store, error) {
	if dsn == "" {
		dsn = a.DSN
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
	s, err := share(a, settings, func() (*store, error) { return openStore(settings, shown) }, a.metrics.watch)
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
