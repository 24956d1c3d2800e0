package edge

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
)

// liveRow is the row of this process in the registry of a database, and all that it shows.
type liveRow struct {
	kind     string
	users    int // how many stores have the row, also those that are being opened
	stores   []*store.Store
	handlers map[int]*Site // by the order in which they came
	next     int
}

// nodeRows are the rows of this process by name and DSN. A row stays until its last store is closed.
var nodeRows = struct {
	mu   sync.Mutex // guards rows, and all that they have
	rows map[string]*liveRow
}{rows: map[string]*liveRow{}}

// leave takes a store off the row, and reports whether it was the last one. The caller holds the mutex.
func (row *liveRow) leave(left *store.Store) bool {
	row.users--
	for i := range row.stores {
		if row.stores[i] == left {
			row.stores = append(row.stores[:i:i], row.stores[i+1:]...)
			break
		}
	}
	return row.users == 0
}

// show has pages show a handler, until forget is called.
func (d *Database) show(h *Site) (forget func()) {
	row := d.row
	if row == nil {
		return nil
	}
	nodeRows.mu.Lock()
	defer nodeRows.mu.Unlock()
	number := row.next
	row.next++
	row.handlers[number] = h
	return func() {
		nodeRows.mu.Lock()
		delete(row.handlers, number)
		nodeRows.mu.Unlock()
	}
}

// liveReport is what pages read. Started is in microseconds, and At in milliseconds since 1970.
type liveReport struct {
	Kind     string            `json:"kind"`
	Started  int64             `json:"started"`
	At       int64             `json:"at"`
	Handlers []any             `json:"handlers"`
	Stores   []any             `json:"stores"`
	Seen     []history.Watched `json:"seen"` // by each history
}

// live is what the process does now, as JSON. While no page is open it stops what is counted for pages.
func (row *liveRow) live(watched bool) string {
	nodeRows.mu.Lock()
	defer nodeRows.mu.Unlock()
	watching := map[*history.Writer]bool{}
	seen := []history.Watched{}
	for _, h := range row.handlers {
		if h.History != nil && !watching[h.History] {
			watching[h.History] = true
			seen = append(seen, history.Watch(h.History, watched))
		}
	}
	if !watched {
		return ""
	}
	text, err := json.Marshal(liveReport{row.kind, started, time.Now().UnixMilli(), row.shownHandlers(), row.shownStores(), seen})
	if err != nil {
		return "{}" // all values are numbers and texts
	}
	return string(text)
}

// shownHandlers are the different handlers.
func (row *liveRow) shownHandlers() []any {
	all := []any{}
	seen := map[string]bool{}
	for _, h := range row.handlers {
		limits := []any{}
		for _, z := range h.Zones {
			l := z.Hit.Limit
			settle := ""
			if z.Settle != nil {
				settle = z.Settle.Text
			}
			wait := int64(0)
			if z.Wait != nil {
				wait = int64(z.Wait.UpTo / time.Millisecond)
			}
			limits = append(limits, map[string]any{
				"prefix": l.Prefix, "key": z.KeyText, "algorithm": l.Algorithm.String(), "events": l.Events, "window_us": int64(l.Window / time.Microsecond),
				"burst": l.Burst, "calendar": int(l.Calendar), "time_zone": l.Zone, "anchor": l.Anchor, "durable": l.Durable, "lease": l.Lease,
				"mode": z.Mode.String(), "varies": z.ByValue != nil, "settle": settle, "wait_ms": wait,
			})
		}
		one := map[string]any{"on_error": string(h.Decider.OnError), "limits": limits}
		text, err := json.Marshal(one)
		if err == nil && !seen[string(text)] {
			seen[string(text)] = true
			all = append(all, one)
		}
	}
	return all
}

// shownStores are all stores.
func (row *liveRow) shownStores() []any {
	all := []any{}
	for i := range row.stores {
		all = append(all, shownStore(row.stores[i]))
	}
	return all
}

// shownStore is what a store has counted since it was opened.
func shownStore(of *store.Store) map[string]any {
	s := of.Stats()
	since := int64(0)
	if local := of.Local(); local.On {
		since = local.Since.UnixMilli()
	}
	counts := map[string]int64{
		"requests": s.Requests, "batches": s.Batches, "failures": s.Failures, "blocked": s.Blocked, "blocked_keys": s.BlockedKeys, "leased": s.Leased,
		"leased_units": s.LeasedUnits, "leases": s.Leases, "waiting": s.Waiting, "in_flight": s.InFlight,
	}
	return map[string]any{"counts": counts, "local_since": since, "errors": s.Errors, "times_us": map[string]any{"counts": s.Times.Counts, "sum": s.Times.Sum}}
}
