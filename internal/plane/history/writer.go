package history

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// flushInterval is the time between two flushes that no full batch causes.
	flushInterval = time.Second
	// totalsInterval is the time between two writes of metrics and usage.
	totalsInterval = 5 * time.Second
	// sendTimeout is for one batch. Its result is unknown afterwards.
	sendTimeout = 5 * time.Second
	// migrateTimeout is for making the tables.
	migrateTimeout = 30 * time.Second
	// closeTimeout bounds Close.
	closeTimeout = 2 * time.Second
	// reportInterval is the time between two calls of OnError.
	reportInterval = time.Minute
)

// Stats are what a Writer has done. Decisions are counted, not rows: refusals that are one row
// count each, and a sampled request counts once. Recorded is Written + Dropped + Pending.
type Stats struct {
	Recorded int64 // decisions for the audit log
	Written  int64 // decisions that are in the audit log
	Dropped  int64 // decisions that never will be in the audit log
	Pending  int64 // decisions that wait

	// Requests that never will be in the metrics, and in the usage. What is pending counts when the
	// Writer is closed.
	DroppedMetrics, DroppedUsage int64

	Batches   int64  // batches that were written
	Failures  int64  // attempts that failed
	LastError string // the failure of the last attempt; "" if it succeeded
}

// Writer writes the history of one process to Postgres. It is safe for concurrent use.
type Writer struct {
	db       pgdb.DB
	settings Settings
	name     string // random; it names the process in rate_limit_writers

	batchRows int // the most rows of a batch; so many are written at once

	closing context.Context // ends when Close begins
	shut    context.CancelFunc
	life    context.Context // ends when Close may wait no longer
	kill    context.CancelFunc
	started sync.Once
	loops   sync.WaitGroup

	mu      sync.Mutex // guards all that follows
	pending pending
	totals  totals
	sent    load // of the batches that are being sent, or will be sent again
	failing bool // the last attempt failed
	closed  bool
	stats   Stats
	wake    context.CancelFunc // ends the wait between two flushes
	busy    context.Context    // ends with the flush that is under way; nil if there is none

	// Only the flush that is under way uses these.
	sending    []*parcel // batches that are to be sent, the first one maybe again
	number     int64     // of the last batch
	reported   int64     // the drops that rate_limit_writers has
	ready      bool      // the tables are as they must be
	lacking    error     // why the tables are not ready
	migrated   time.Time // when the tables were last looked at
	retained   bool      // the retention is written
	retainedAt time.Time // when writing the retention was last tried
	delayed    int64     // the second whose rows were left for the next flush
	totalled   time.Time // when metrics and usage were last written
	told       time.Time // when OnError was last called
	toldOf     int64     // how many drops OnError has been told of

	upkeepText string // the last failure of Upkeep; only upkeepLoop uses it
}

// New returns a Writer on db. It does not touch the network yet, and does not close db. The error
// is a *ratelimit.FieldError.
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
	w := &Writer{db: db, settings: s, name: hex.EncodeToString(name), totals: newTotals(), totalled: time.Now()}
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

// Prepare starts to write in the background.
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

// Flush writes all that is pending now. The error says why something is still pending: it is
// ratelimit.ErrClosed after Close.
func (w *Writer) Flush(ctx context.Context) error {
	if w.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	return w.flush(ctx, true)
}

// flush writes what is due, or all. A panic, of a driver for one, is an error.
func (w *Writer) flush(ctx context.Context, all bool) error {
	release, err := w.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
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

// acquire waits until no other flush is under way. The caller calls release at the end of its own.
func (w *Writer) acquire(ctx context.Context) (func(), error) {
	for {
		w.mu.Lock()
		busy := w.busy
		if busy == nil {
			ended, end := context.WithCancel(context.Background())
			w.busy = ended
			w.mu.Unlock()
			return func() {
				w.mu.Lock()
				w.busy = nil
				w.mu.Unlock()
				end()
			}, nil
		}
		w.mu.Unlock()
		either, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(busy, cancel)
		<-either.Done()
		stop()
		cancel()
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("waiting for another flush of the history: %w", err)
		}
	}
}

// report calls OnError if something failed or was dropped, and it is time.
func (w *Writer) report(failure error) {
	stats := w.Stats()
	dropped := stats.Dropped + stats.DroppedMetrics + stats.DroppedUsage
	now := w.settings.Now()
	if failure == nil && dropped == w.toldOf || !w.told.IsZero() && now.Sub(w.told) < reportInterval {
		return
	}
	text := failure
	if dropped > 0 {
		text = fmt.Errorf("the history has dropped %d decisions of the audit log, and %d requests of the metrics and %d of the usage, since the start",
			stats.Dropped, stats.DroppedMetrics, stats.DroppedUsage)
		if failure != nil {
			text = fmt.Errorf("%w; the last failure: %w", text, failure)
		}
	}
	w.told = now
	w.toldOf = dropped
	if w.settings.OnError != nil {
		_ = batch.PanicError(func() { w.settings.OnError(text) })
	}
}

// Stats returns the counts as of now.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	stats := w.stats
	stats.Pending = w.pending.decisions + w.sent.decisions
	return stats
}

// Close writes what is pending, for up to 2 s, and ends the background work. What is pending
// afterwards counts as dropped, also a batch with an unknown result. Later records are dropped.
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
	w.sent.decisions += w.pending.decisions
	w.sent.add(w.totals.all(), 1)
	w.lose(w.sent)
	w.sent = load{}
	w.pending = pending{}
	w.totals = newTotals()
	w.mu.Unlock()
}
