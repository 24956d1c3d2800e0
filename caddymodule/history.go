package caddymodule

import (
	"fmt"
	"reflect"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// History is what is recorded of requests, and for how long. Requests do not wait for it.
type History struct {
	// The database of the history, if it is another one than that of the limits: a
	// Postgres address, as in the handler's `dsn`. Default: that of the limits.
	DSN string `json:"dsn,omitempty"`

	// The name of this Caddy in the history, up to 100 bytes. May contain
	// placeholders such as `{env.NAME}` or `{system.hostname}`. Default: the
	// `node_name` of the global options.
	Node string `json:"node,omitempty"`

	// Where this Caddy runs, up to 100 bytes. May contain placeholders. Default:
	// none.
	Region string `json:"region,omitempty"`

	// How much of the clients' addresses is in the audit log: `full`, `prefix` (the
	// /24 of an IPv4 address, the /48 of an IPv6 address) or `off`. Default: `full`.
	AuditAddress string `json:"audit_address,omitempty"`

	// Where to archive the history to daily, as Parquet files: a folder or
	// `s3://BUCKET/PREFIX`, then `daily`, and if need be `before 60d` (the age from
	// which days are archived), `expire 7y` (that from which files are deleted) or
	// `expire never`, and `drop`, which removes the days of the audit log from the
	// database. One Caddy of all does it. Default: no archive.
	Archive string `json:"archive,omitempty"`

	// How long the history is kept. Upkeep deletes what is older. Default: what the
	// database has. A new database has 90 days for the audit log, 7 days, 90 days and
	// 7 years for the metrics by minute, hour and day, and 7 years for the usage.
	Retention *Retention `json:"retention,omitempty"`
}

// Retention is how long the parts of the history are kept: durations from `1d` to `100y`,
// such as `90d`, `12w` or `7y`, where a year is 366 days. What is left out stays as it is in the
// database.
type Retention struct {
	// The audit log.
	Audit string `json:"audit,omitempty"`

	// The metrics by minute.
	MetricsMinute string `json:"metrics_minute,omitempty"`

	// The metrics by hour.
	MetricsHour string `json:"metrics_hour,omitempty"`

	// The metrics by day.
	MetricsDay string `json:"metrics_day,omitempty"`

	// The usage of users and API keys.
	Usage string `json:"usage,omitempty"`
}

// compile checks the settings. Errors are *ratelimit.FieldError, with the names of the
// Caddyfile's subdirectives. h may be nil.
func (h *History) compile() (edge.HistorySettings, error) {
	var read edge.Settings
	if h == nil {
		return read.History, nil
	}
	expanded := *h
	var err error
	if expanded.Node, err = nodeText("node", h.Node); err != nil {
		return read.History, err
	}
	if expanded.Region, err = nodeText("region", h.Region); err != nil {
		return read.History, err
	}
	if err := edge.Read(edge.HistoryTable, reflect.ValueOf(&expanded), &read); err != nil {
		return read.History, err
	}
	if h.Retention != nil {
		if err := edge.Read(edge.RetentionTable, reflect.ValueOf(h.Retention), &read); err != nil {
			return read.History, fmt.Errorf("retention: %w", err)
		}
	}
	return read.History, nil
}

// nodeText is the name of a node or a region without placeholders.
func nodeText(field, configured string) (string, error) {
	text, err := caddy.NewReplacer().ReplaceOrErr(configured, true, true)
	if err != nil {
		return "", &ratelimit.FieldError{Field: field, Value: configured, Want: "a name, or placeholders that give one: " + err.Error()}
	}
	return text, nil
}

func (h *History) check() error {
	_, err := h.compile()
	return err
}

func (r *Retention) check() error {
	return edge.Read(edge.RetentionTable, reflect.ValueOf(r), &edge.Settings{})
}

// historyUse identifies a history.
type historyUse struct {
	store    edge.StoreSettings
	settings edge.HistorySettings
}

// openHistory sets where the handler records its requests, if it does, and which of them are in
// the audit log. It returns the store of the history, nil without one.
func (h *Handler) openHistory(app *App) (*store, error) {
	most, err := h.site.SetAudit(h.Audit, app.History != nil)
	if err != nil {
		return nil, err
	}
	at, err := app.historyStore(h.store)
	if err != nil {
		return nil, err
	}
	if most.Level == history.AuditOff && (app.History == nil || at.db == nil) {
		return nil, nil
	}
	h.site.Hide()
	h.site.History, err = app.history(at)
	return at, err
}

// Recording implements edge.Watcher. There is a user if an authentication has run.
func (watcher) Recording(q *edge.Request) string {
	user, _ := q.Data.(*caddy.Replacer).GetString("http.auth.user.id")
	return user
}

// historyStore returns the store for the history of the limits in a store.
func (a *App) historyStore(s *store) (*store, error) {
	if a.History == nil || a.History.DSN == "" {
		return s, nil
	}
	at, err := a.database(a.History.DSN, 0, s)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return at, nil
}

// history returns what writes the history into the database of a store.
func (a *App) history(s *store) (*history.Writer, error) {
	settings, err := a.History.compile()
	if err != nil {
		return nil, err
	}
	w, err := share(a, historyUse{s.settings, settings}, func() (*history.Writer, error) {
		return edge.OpenHistory(s.db, settings, edge.HistoryOptions{
			Node: s.settings.NodeNameOf(proxyKind), AutoMigrate: s.settings.AutoMigrate, OnError: s.logHistoryFailure,
		})
	}, a.metrics.watchHistory)
	if err == nil && settings.Archive.To != "" {
		_, err = share(a, archiveUse{s.settings, settings.Archive}, func() (*archiver, error) { return newArchiver(s, settings.Archive), nil }, a.metrics.watchArchiver)
	}
	return w, err
}

// logHistoryFailure logs that the history could not be written.
func (s *store) logHistoryFailure(err error) {
	caddy.Log().Named(logName).Error("the history", zap.Error(err))
}
