package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// write writes the rows and cells that are due, or, if flushAll is set, all pending rows and cells.
func (w *Writer) write(ctx context.Context, flushAll bool) error {
	prepareErr := w.prepareTables(ctx)
	if errors.Is(prepareErr, ratelimit.ErrUnavailable) {
		return prepareErr
	}
	w.mu.Lock()
	end := w.pending.end()
	if !flushAll && len(w.pending.rows) < w.parcelRows {
		// Leave the rows of the current second to the next flush, so that equal refusals can still merge into
		// them.
		end = w.pending.firstOf(w.settings.Now().Unix())
	}
	if flushAll || time.Since(w.cellsDueAt) >= cellsInterval {
		w.cellsDue = w.cells.waiting
		w.cellsDueAt = time.Now()
	}
	w.mu.Unlock()
	for {
		p := w.nextParcel(end)
		if p == nil {
			if prepareErr != nil {
				w.report(prepareErr)
			}
			return nil
		}
		if err := w.send(ctx, p); err != nil {
			if prepareErr != nil {
				return fmt.Errorf("%w; %w", err, prepareErr)
			}
			return err
		}
	}
}

// nextParcel returns the parcel to send next, or nil if there is nothing to send. A new parcel has rows with
// numbers below end, or else cells. If records were dropped since the last parcel, a parcel without rows
// reports their number.
func (w *Writer) nextParcel(end int64) *parcel {
	if len(w.sending) > 0 {
		return w.sending[0]
	}
	w.mu.Lock()
	n := len(w.pending.rows)
	if n > w.parcelRows {
		n = w.parcelRows
	}
	if due := int(end - w.pending.firstNumber); n > due {
		n = due
	}
	p := &parcel{table: audit}
	var cells []*cell
	if n > 0 {
		p.rows = w.pending.removeOldest(n)
	} else {
		cells = w.cells.removeCells(w.cellsDue)
	}
	dropped := w.stats.Dropped
	w.mu.Unlock()
	if cells != nil {
		p.table = metrics
		w.cellsDue -= len(cells)
	}
	for _, c := range cells { // without the mutex, because it takes long
		p.rows = append(p.rows, c.row())
	}
	if len(p.rows) == 0 && dropped == w.droppedInDatabase {
		return nil
	}
	w.sending = append(w.sending, p)
	return p
}

// prepareTables creates the tables if there are none, and then writes the retention. If a step has failed, a
// later call repeats it. After an error other than ratelimit.ErrUnavailable, parcels can still be written if
// the tables exist.
func (w *Writer) prepareTables(ctx context.Context) error {
	err := w.tables.Try(ctx, w.db, true, time.Now(), func() {})
	if err == nil && !w.retentionWritten {
		err = w.writeRetention(ctx)
		w.retentionWritten = err == nil
	}
	return err
}

// writeRetention writes the retention. If the role may not shorten a retention, that retention stays, and
// writeRetention calls OnError with the reason.
func (w *Writer) writeRetention(ctx context.Context) error {
	var parts, keeps []string
	for _, r := range w.settings.Retention {
		parts = append(parts, r.What)
		keeps = append(keeps, intervalText(r.Keep))
	}
	statement := &pgdb.Statement{
		SQL:  "SELECT rate_limit_retain(what, keep, $3) FROM unnest($1::text[], $2::text[]) AS r(what, keep)",
		Args: []any{parts, keeps, w.settings.Node}, Synchronous: true,
	}
	err := w.db.Run(ctx, retainTimeout, []*pgdb.Statement{statement})
	if err == nil {
		err = statement.Err
	}
	var reasons [][]byte
	if err == nil {
		reasons, err = pg.Columns(statement.Result)
	}
	if err != nil {
		return fmt.Errorf("writing the retention of the history: %w", err)
	}
	for _, reason := range reasons {
		if reason != nil {
			w.callOnError(fmt.Errorf("the retention of the history: %s", reason))
		}
	}
	return nil
}

// intervalText returns a duration as the text of a Postgres interval.
func intervalText(d time.Duration) string {
	if d%day == 0 {
		return fmt.Sprintf("%d days", d/day)
	}
	return fmt.Sprintf("%d seconds", d/time.Second)
}

// send sends p, the first parcel of sending. If p was written, send removes p from sending. If p was
// rejected, send replaces p by its halves, or drops it if it is a single row. In these cases send returns
// nil. After an error, p must be sent again.
func (w *Writer) send(ctx context.Context, p *parcel) error {
	if p.number == 0 {
		w.number++
		p.number = w.number
	}
	w.mu.Lock()
	dropped, written := w.stats.Dropped, w.stats.Written
	w.mu.Unlock()
	if p.table == audit {
		written += sumRecords(p.rows)
	}
	statements := w.statements(p, written, dropped)
	err := w.db.Run(ctx, sendTimeout, statements)
	rejected, code, failure := resultOf(statements, err)
	if failure == nil {
		w.droppedInDatabase = dropped
		w.finish(p, false)
		return nil
	}
	if pg.IsMissing(code) {
		// Tables that are created again or restored have another retention, so write the retention again.
		w.retentionWritten = len(w.settings.Retention) == 0
	}
	if code == pg.Untranslatable {
		failure = fmt.Errorf("%s: %w", pg.EncodingHint, failure)
	}
	wrapped := fmt.Errorf("writing the history: %w", failure)
	if !rejected || len(p.rows) == 0 { // a parcel without rows would follow itself
		return wrapped
	}
	parts := p.split()
	if parts == nil {
		w.finish(p, true)
		w.report(wrapped)
		return nil
	}
	w.sending = append(parts, w.sending[1:]...)
	return nil
}

// finish removes the first parcel from sending and counts it as written or dropped.
func (w *Writer) finish(p *parcel, dropped bool) {
	w.sending = w.sending[1:]
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p.table == audit && dropped:
		w.stats.Dropped += w.release(p.rows)
	case p.table == audit:
		w.stats.Written += w.release(p.rows)
	case dropped:
		w.stats.DroppedMetrics += sumRecords(p.rows)
	}
}

// resultOf returns the result of a transaction that writes a parcel. err is the error that DB.Run returned.
// If the parcel was not written for certain, failure is the error, and code its SQLSTATE. A rejected
// parcel was not written and would fail again. After another error, the parcel may have been written, and is
// sent again with its number.
func resultOf(statements []*pgdb.Statement, err error) (rejected bool, code string, failure error) {
	begin := statements[0]
	if begin.Err != nil && begin.Code == pg.UniqueViolation {
		return false, "", nil // an earlier attempt has written the parcel
	}
	for _, s := range statements {
		if s.Err == nil || errors.Is(s.Err, pgdb.ErrRolledBack) {
			continue
		}
		return err == nil && isFinal(s.Code), s.Code, s.Err
	}
	return false, "", begin.Err
}

// isFinal reports whether a parcel that failed with the SQLSTATE code would fail again. code is "" if the
// driver could not send a parameter.
func isFinal(code string) bool {
	if code == "" {
		return true
	}
	for _, class := range []string{"21", "22", "23", "54", "P0"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}
