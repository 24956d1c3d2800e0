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
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// flushInterval bounds the time between two flushes.
	flushInterval = time.Second
	// totalsInterval is the minimum time between two writes of metrics.
	totalsInterval = 10 * time.Second
	// sendTimeout bounds an attempt to write a parcel. After a timeout the result is unknown.
	sendTimeout = 5 * time.Second
	// prepareTimeout bounds a migration and the write of the retention together.
	prepareTimeout = 30 * time.Second
	// closeTimeout bounds Close.
	closeTimeout = 2 * time.Second
	// reportInterval is the minimum time between two calls of OnError.
	reportInterval = time.Minute
)

// Stats counts the work of a Writer. It counts decisions, not rows: each refusal in a merged row counts, and
// a sampled request counts once. Recorded is the sum of Written, Dropped and Pending.
type Stats struct {
	Recorded int64 // decisions for the audit log
	Written  int64 // decisions in the audit log
	Dropped  int64 // decisions that will never be in the audit log
	Pending  int64 // decisions that are not written yet

	// DroppedMetrics counts requests that will never be in the metrics. Close adds the pending ones.
	DroppedMetrics int64
	// Other counts requests that are in the metrics without their user and endpoint, because a minute had
	// more than 10,000 combinations.
	Other int64

	Batches   int64  // written parcels
	Failures  int64  // failed attempts
	LastError string // the error of the last attempt; "" if it succeeded
}

// Writer writes the history of one process to Postgres. It is safe for concurrent use.
//
// The mutex mu guards the records that Add collects. One flush at a time owns the parcels: it takes rows and
// cells under the mutex, and sends them without it.
type Writer struct {
	db       pgdb.DB
	settings Settings
	name     string // random; identifies the process in rate_limit_writers

	batchRows int // the maximum of a parcel; a flush starts when batchRows rows wait

	closing context.Context // ends when Close begins
	shut    context.CancelFunc
	life    context.Context // ends when Close stops waiting
	kill    context.CancelFunc
	started sync.Once
	loops   sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	pending     pending
	totals      totals
	sendingSize parcelSize // the size of the parcels in sending
	failing     bool       // the last attempt failed
	closed      bool
	stats       Stats
	wake        context.CancelFunc // starts the next flush

	flushing         chan struct{} // holds a value during a flush, which owns the fields below
	sending          []*parcel     // parcels to send; an attempt for the first one may have failed
	number           int64         // the number of the last parcel
	reportedDropped  int64         // the drops recorded in rate_limit_writers
	ready            bool          // the tables are up to date
	retentionWritten bool          // the retention was written
	prepareErr       error         // the last error of prepare
	preparedAt       time.Time     // the last attempt of prepare
	delayedSecond    int64         // the second with rows that a flush left for the next one
	cellsDue         int           // the number of cells to write in this flush
	collectedAt      time.Time     // the last time when all cells became due
	reportedAt       time.Time     // the last call of OnError
	reportedDrops    int64         // the sum of drops and Stats.Other reported to OnError

	upkeepText string // the last failure of Upkeep; only upkeepLoop uses it
}

// New returns a Writer on db. It sends nothing yet, and never closes db. The error is a *ratelimit.FieldError
// if a setting is not valid.
func New(db pgdb.DB, s Settings) (*Writer, error) {
	if db == nil {
		return nil, &ratelimit.FieldError{Field: "db", Want: "a DB, such as pgxdb.Open returns"}
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return nil, fmt.Errorf("no random bits for the name of the history's writer: %w", err)
	}
	w := &Writer{db: db, settings: s, name: hex.EncodeToString(name), totals: newTotals(),
		flushing: make(chan struct{}, 1), collectedAt: time.Now(), ready: s.DisableMigration,
		retentionWritten: len(s.Retention) == 0}
	w.batchRows = batchRows
	if half := (s.MaxPending + 1) / 2; w.batchRows > half {
		w.batchRows = half
	}
	w.pending.merged = make(map[mergeKey]int64)
	w.closing, w.shut = context.WithCancel(context.Background())
	w.life, w.kill = context.WithCancel(context.Background())
	w.wake = func() {}
	return w, nil
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
		full := len(w.pending.rows) >= w.batchRows && !w.failing
		w.mu.Unlock()
		if !full {
			<-interval.Done()
		}
		wake()
		if w.closing.Err() == nil {
			_ = w.flush(w.life, false)
		}
	}
}

// Flush writes all pending records. After an error, some are still pending. After Close the error is
// ratelimit.ErrClosed.
func (w *Writer) Flush(ctx context.Context) error {
	if w.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	return w.flush(ctx, true)
}

// flush writes the rows and cells that are due, or all if all is set. It first waits for the running flush,
// which ends with w.life at the latest. It returns a panic of a driver as an error.
func (w *Writer) flush(ctx context.Context, all bool) error {
	w.flushing <- struct{}{}
	defer func() { <-w.flushing }()
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(w.life, cancel)
	defer stop()
	var failure error
	if err := batch.PanicError(func() { failure = w.write(within, all) }); err != nil {
		failure = err
	}
	w.mu.Lock()
	w.failing = failure != nil
	w.stats.LastError = ""
	if failure != nil {
		w.stats.Failures++
		w.stats.LastError = failure.Error()
	}
	w.mu.Unlock()
	w.report(failure)
	return failure
}

// report calls OnError if failure is not nil or records were dropped, at most once in reportInterval.
func (w *Writer) report(failure error) {
	stats := w.Stats()
	dropped := stats.Dropped + stats.DroppedMetrics
	now := w.settings.Now()
	recently := !w.reportedAt.IsZero() && now.Sub(w.reportedAt) < reportInterval
	if recently || failure == nil && dropped+stats.Other == w.reportedDrops {
		return
	}
	text := ""
	if dropped > 0 {
		text = fmt.Sprintf("the history has dropped %d decisions of the audit log, and %d requests of the "+
			"metrics, since the start; ", stats.Dropped, stats.DroppedMetrics)
	}
	if stats.Other > 0 {
		text += fmt.Sprintf("%d requests since the start are in the metrics with the user and the endpoint "+
			"%s: a minute had more than %d combinations of user, API key, limit and endpoint; ",
			stats.Other, other, maxMinuteCells)
	}
	switch {
	case failure == nil:
		failure = errors.New(strings.TrimSuffix(text, "; "))
	case text != "":
		failure = fmt.Errorf("%sthe last failure: %w", text, failure)
	}
	w.reportedAt = now
	w.reportedDrops = dropped + stats.Other
	w.callOnError(failure)
}

// callOnError calls OnError, if it is not nil. It ignores a panic of OnError.
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
	stats.Pending = w.pending.decisions + w.sendingSize.decisions
	return stats
}

// Close writes pending records for up to 2 s, and ends the background work. Records that are still pending
// then count as dropped, including a parcel with an unknown result. Later records are dropped.
func (w *Writer) Close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		w.loops.Wait()
		return
	}
	w.closed = true
	w.mu.Unlock()
	w.shut()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, w.kill)
	defer stop()
	_ = w.flush(ctx, true)
	w.kill()
	w.loops.Wait()
	w.mu.Lock()
	w.sendingSize.decisions += w.pending.decisions
	for w.totals.waiting > 0 {
		w.sendingSize.add(&parcel{cells: w.totals.take(batchCells)}, 1)
	}
	w.drop(w.sendingSize)
	w.sendingSize = parcelSize{}
	w.pending = pending{}
	w.totals = newTotals()
	w.mu.Unlock()
}
