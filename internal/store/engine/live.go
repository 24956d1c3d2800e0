package engine

import (
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
)

// watchSQL is pauseSQL behind the number of pages that are open, and a space.
const watchSQL = `SELECT (SELECT count(*) FROM rate_limit_nodes WHERE watched > clock_timestamp())::text || ' ' || coalesce((` + pauseSQL + `), '')`

// watching is what a registration knows of the pages that show what proxies do. While one is open, the row
// has what the process does now.
type watching struct {
	watched bool // a page is open
	written bool // the row has what report returned

	mu     sync.Mutex
	report func(watched bool) string // see SetLive; nil without; guarded by mu
}

// SetLive has the store call live about once a second while a page is open that shows what proxies do, and once
// with false when no page is open any more. live returns a text of JSON for the registry. SetLive does nothing
// without Options.Node.
func (s *Store) SetLive(live func(watched bool) string) {
	if s.registered == nil {
		return
	}
	w := &s.registered.watching
	w.mu.Lock()
	w.report = live
	w.mu.Unlock()
}

// read reads the pages in the result of watchSQL, and returns the rest.
func (w *watching) read(text string) string {
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
