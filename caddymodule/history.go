package caddymodule

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// History is what is recorded of requests, and for how long. Requests do not wait for it.
type History struct {
	HistorySettings

	// How long the history is kept. Upkeep deletes what is older. Default: what the
	// database has. A new database has 90 days for the audit log, 7 days, 90 days and
	// 7 years for the metrics by minute, hour and day, and 7 years for the usage.
	Retention *Retention `json:"retention,omitempty"`
}

// compile checks the settings. Errors are *ratelimit.FieldError, with the names of the
// Caddyfile's subdirectives. h may be nil.
func (h *History) compile() (edge.HistorySettings, error) {
	var read edge.Settings
	if h == nil {
		return read.History, nil
	}
	from := values(&h.HistorySettings)
	if err := expandNames(from, "node", "region"); err != nil {
		return read.History, err
	}
	if err := edge.Read(edge.HistoryTable, from, &read); err != nil {
		return read.History, err
	}
	if h.Retention != nil {
		if err := edge.Read(edge.RetentionTable, values(h.Retention), &read); err != nil {
			return read.History, fmt.Errorf("retention: %w", err)
		}
	}
	return read.History, nil
}

// expandNames replaces the placeholders in the names of nodes and regions.
func expandNames(in edge.Values, fields ...string) error {
	for _, field := range fields {
		text, err := caddy.NewReplacer().ReplaceOrErr(in[field], true, true)
		if err != nil {
			return &ratelimit.FieldError{Field: field, Value: in[field], Want: "a name, or placeholders that give one: " + err.Error()}
		}
		in[field] = text
	}
	return nil
}

func (h *History) check() error {
	_, err := h.compile()
	return err
}

func (r *Retention) check() error {
	return edge.Read(edge.RetentionTable, values(r), &edge.Settings{})
}

// historyUse identifies a history.
type historyUse struct {
	store    edge.StoreSettings
	settings edge.HistorySettings
}

// openHistory sets where the handler records its requests, if it does, and which of them are in
// the audit log. It returns the store of the history, nil without one.
func (h *Handler) openHistory(app *App) (*store, error) {
	most, err := h.site.SetAudit(string(h.Audit), app.History != nil)
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
	at, err := a.database(string(a.History.DSN), 0, s)
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
	})
	if err == nil && settings.Archive.To != "" {
		_, err = share(a, archiveUse{s.settings, settings.Archive}, func() (*archiver, error) { return newArchiver(s, settings.Archive), nil })
	}
	return w, err
}

// logHistoryFailure logs that the history could not be written.
func (s *store) logHistoryFailure(err error) {
	caddy.Log().Named(logName).Error("the history", zap.Error(err))
}
