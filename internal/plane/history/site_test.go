package history_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// baseTime is a time in the middle of a second, a minute and a day.
var baseTime = time.Date(2026, 11, 20, 12, 30, 15, 500_000_000, time.UTC)

// testDB is a database with Writers on it.
type testDB struct {
	*sqltest.DB
	t testing.TB

	mu       sync.Mutex
	reported []string
}

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return &testDB{DB: sqltest.Open(t), t: t}
}

// newWriter returns a Writer that writes only in Flush.
func (d *testDB) newWriter(settings history.Settings) *history.Writer {
	d.t.Helper()
	return d.newWriterOn(d.OpenDB(""), settings)
}

func (d *testDB) newWriterOn(db pgdb.DB, settings history.Settings) *history.Writer {
	d.t.Helper()
	settings.OnError = func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reported = append(d.reported, err.Error())
	}
	if settings.Node == "" {
		settings.Node = "n1"
	}
	w := history.New(db, settings)
	d.t.Cleanup(w.Close)
	return w
}

// reportedErrors returns the texts of all errors that the Writers have reported.
func (d *testDB) reportedErrors() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.reported...)
}

func flush(t testing.TB, w *history.Writer) {
	t.Helper()
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}
