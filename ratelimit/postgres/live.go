package postgres

import (
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// watchSQL is pauseSQL behind the number of pages that are open, and a space.
const watchSQL = `SELECT (SELECT count(*) FROM rate_limit_nodes WHERE watched > clock_timestamp())::text || ' ' || coalesce((` + pauseSQL + `), '')`

// watching is what a registration knows of the pages that show what proxies do. While one is open, the row
// has what the process does now.
type watching struct {
	watched bool // a page is open
	old     bool // the server has refused watchSQL
	written bool // the row has what report returned

	mu     sync.Mutex
	report func(watched bool) string // see hooks.SetLive; nil without; guarded by mu
}

// setLive is hooks.SetLive.
func setLive(store ratelimit.Store, live func(watched bool) string) {
	s, ok := store.(*Store)
	if !ok || s.registered == nil {
		return
	}
	w := &s.registered.watching
	w.mu.Lock()
	w.report = live
	w.mu.Unlock()
}

// look is the statement that reads the pause, and whether a page is open. A registry of an older version
// knows no pages.
func (w *watching) look() *Statement {
	if w.old {
		return &Statement{SQL: pauseSQL}
	}
	return &Statement{SQL: watchSQL}
}

// read reads the pages in the result of look, and returns the rest.
func (w *watching) read(look *Statement, text string) string {
	w.watched = false
	if look.SQL != watchSQL {
		return text
	}
	pages, rest, _ := strings.Cut(text, " ")
	w.watched = pages != "0"
	return rest
}

// liveText is what the row is to have: what the process does now, or nil if no page is open.
func (r *registration) liveText() any {
	w := &r.watching
	if !w.watched && !w.written {
		return nil
	}
	w.written = w.watched
	w.mu.Lock()
	report := w.report
	w.mu.Unlock()
	text := ""
	if report != nil {
		r.fail("live", batch.PanicError(func() { text = report(w.watched) }))
	}
	if text == "" {
		return nil
	}
	return text
}
