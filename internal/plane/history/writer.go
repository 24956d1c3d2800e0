package history

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// flushInterval is the longest time between two flushes.
	flushInterval = time.Second
	// cellsInterval is the minimum time between two writes of metrics.
	cellsInterval = 10 * time.Second
	// sendTimeout bounds an attempt to write a parcel. After a timeout, it is unknown whether the parcel was
	// written.
	sendTimeout = 5 * time.Second
	// retainTimeout bounds the write of the retention.
	retainTimeout = 30 * time.Second
	// closeTimeout bounds Close.
	closeTimeout = 2 * time.Second
	// reportInterval is the minimum time between two calls of OnError.
	reportInterval = time.Minute
)

// Stats counts the work of a Writer. The first three fields count records for the audit log, not its rows: a
// row of 7 merged refusals has 7 records, and a row of a sample has 1 record, whatever its weight.
type Stats struct {
	Written int64 // records in the audit log
	Dropped int64 // records that will never be in the audit log
	Pending int64 // records that are not written yet

	// DroppedMetrics counts requests that will never be in the metrics. After Close, DroppedMetrics includes
	// the requests that Close could not write.
	DroppedMetrics int64
	// Other counts requests that are in the metrics without their user and endpoint, because a minute had
	// more than 10,000 combinations.
	Other int64
}

// Writer writes the history of one process to Postgres. A Writer is safe for concurrent use.
//
// The mutex mu guards the records that Add collects. One flush runs at a time, and owns the parcels. A flush
// holds mu only while it moves rows and cells into parcels, not while it sends parcels.
type Writer struct {
	db       pgdb.DB
	settings Settings
	name     string // random; identifies the process in rate_limit_writers

	maxPending int // MaxPending, except in tests
	parcelRows int // the maximum number of rows in a parcel; this number of pending rows starts a flush

	closing     context.Context // ends when Close begins
	beginClose  context.CancelFunc
	lifetime    context.Context // ends when Close stops waiting
	endLifetime context.CancelFunc
	started     sync.Once
	loops       sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	pending pending
	cells   cellSet
	size    auditSize // of the rows in pending and in sending
	failing bool      // the last attempt failed
	closed  bool
	stats   Stats
	wake    context.CancelFunc // starts the next flush

	flushing          chan struct{} // holds a value during a flush, which owns the fields below
	sending           []*parcel     // to send; the first may already be written
	number            int64         // the number of the last parcel
	droppedInDatabase int64         // the value of rate_limit_writers.dropped
	tables            schema.Preparation
	retentionWritten  bool      // the retention was written
	cellsDue          int       // the number of cells to write in this flush
	cellsDueAt        time.Time // when all cells last became due
	reportedAt        time.Time // the last call of OnError
	countsReported    int64     // the sum of drops and Stats.Other in the last report to OnError

	upkeepText string // the last failure of Upkeep; only upkeepLoop uses it
}

// New returns a Writer that writes to db. The Writer sends nothing before Prepare or Flush, and never closes
// db.
func New(db pgdb.DB, s Settings) *Writer {
	if s.Address == "" {
		s.Address = option.AddressFull
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	name := make([]byte, 16)
	_, _ = rand.Read(name) // without random bits, Go ends the process
	w := &Writer{db: db, settings: s, name: hex.EncodeToString(name), cells: newCellSet(),
		maxPending: MaxPending, parcelRows: parcelRows, flushing: make(chan struct{}, 1),
		cellsDueAt: time.Now(), tables: schema.Preparation{Done: s.DisableMigration},
		retentionWritten: len(s.Retention) == 0}
	w.pending.merged = make(map[mergeKey]int64)
	w.closing, w.beginClose = context.WithCancel(context.Background())
	w.lifetime, w.endLifetime = context.WithCancel(context.Background())
	w.wake = func() {}
	return w
}

// Prepare starts the flushes and the upkeep in the background.
func (w *Writer) Prepare() {
	w.started.Do(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.closed {
			return
		}
		w.loops.Add(2)
		go func() {
			defer w.loops.Done()
			w.writeLoop()
		}()
		go func() {
			defer w.loops.Done()
			w.upkeepLoop()
		}()
	})
}

// writeLoop flushes until the Writer is closed.
func (w *Writer) writeLoop() {
	for w.closing.Err() == nil {
		interval, wake := context.WithTimeout(w.closing, flushInterval)
		w.mu.Lock()
		w.wake = wake
		isFull := len(w.pending.rows) >= w.parcelRows && !w.failing
		w.mu.Unlock()
		if !isFull {
			<-interval.Done()
		}
		wake()
		if w.closing.Err() == nil {
			_ = w.flush(w.lifetime, false)
		}
	}
}

// Flush writes all pending records. After an error, some records are still pending. After Close, the error is
// ratelimit.ErrClosed.
func (w *Writer) Flush(ctx context.Context) error {
	if w.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	return w.flush(ctx, true)
}

// flush writes the rows and cells that are due, or, if flushAll is set, all pending rows and cells. flush
// waits until a running flush has ended. The end of w.lifetime cancels every flush. flush returns a panic of
// a driver as an error.
func (w *Writer) flush(ctx context.Context, flushAll bool) error {
	w.flushing <- struct{}{}
	defer func() { <-w.flushing }()
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(w.lifetime, cancel)
	defer stop()
	failure := batch.Try(func() error { return w.write(within, flushAll) })
	w.mu.Lock()
	w.failing = failure != nil
	w.mu.Unlock()
	w.report(failure)
	return failure
}

// report calls OnError, at most once in reportInterval. The error is about failure, unless it is nil, and
// about the requests that were dropped or counted under overflowName since the last report.
func (w *Writer) report(failure error) {
	stats := w.Stats()
	dropped := stats.Dropped + stats.DroppedMetrics
	now := w.settings.Now()
	recently := !w.reportedAt.IsZero() && now.Sub(w.reportedAt) < reportInterval
	if recently || failure == nil && dropped+stats.Other == w.countsReported {
		return
	}
	text := ""
	if dropped > 0 {
		text = fmt.Sprintf("the history has dropped %d records of the audit log, and %d requests of the "+
			"metrics, since the start; ", stats.Dropped, stats.DroppedMetrics)
	}
	if stats.Other > 0 {
		text += fmt.Sprintf("since the start, the metrics have %d requests under the user and endpoint "+
			"%s, because a minute had more than %d combinations of user, API key, limit and endpoint; ",
			stats.Other, overflowName, maxMinuteCells)
	}
	switch {
	case failure == nil:
		failure = errors.New(strings.TrimSuffix(text, "; "))
	case text != "":
		failure = fmt.Errorf("%sthe last failure: %w", text, failure)
	}
	w.reportedAt = now
	w.countsReported = dropped + stats.Other
	w.callOnError(failure)
}

// callOnError calls OnError if it is not nil, and ignores a panic of OnError.
func (w *Writer) callOnError(err error) {
	if w.settings.OnError != nil {
		_ = batch.PanicError(func() { w.settings.OnError(err) })
	}
}

// Stats returns a snapshot of the counts.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	stats := w.stats
	stats.Pending = w.size.records
	return stats
}

// Close writes pending records for up to 2 s, and ends the background work. Records that are not confirmed by
// then count as dropped, even those of a parcel that the server may have written. Records that Add receives
// later are dropped.
func (w *Writer) Close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		w.loops.Wait()
		return
	}
	w.closed = true
	w.mu.Unlock()
	w.beginClose()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, w.endLifetime)
	defer stop()
	_ = w.flush(ctx, true)
	w.endLifetime()
	w.loops.Wait()
	w.flushing <- struct{}{}
	defer func() { <-w.flushing }()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Dropped += w.size.records
	for _, p := range w.sending {
		if p.table == metrics {
			w.stats.DroppedMetrics += sumRecords(p.rows)
		}
	}
	for w.cells.waiting > 0 {
		for _, c := range w.cells.removeCells(parcelRows) {
			w.stats.DroppedMetrics += c.requests()
		}
	}
	w.size = auditSize{}
	w.sending = nil
	w.pending = pending{}
	w.cells = newCellSet()
}
