package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Change is a line of the log of changes.
type Change struct {
	Seq  int64     `json:"seq"`
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	Kind string    `json:"kind"`
	// Ref is what was changed; nil is all of this kind.
	Ref *string `json:"ref"`
	// KeyID is the id of the API key that was changed, or whose override or ban was; nil for another change.
	KeyID  *int64          `json:"key_id" db:"-"`
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
	// What says what the change did: "created", "deleted", "changed", or the columns that differ.
	What []string `json:"-" db:"-"`
}

// Changes returns the changes of the last duration, the latest first, at most so many.
func (d *Database) Changes(ctx context.Context, since time.Duration, most int) ([]Change, error) {
	changes, err := rows[Change](ctx, d, `SELECT seq, at, by, kind, ref, before::text::json, after::text::json FROM rate_limit_changes
WHERE at >= now() - $1::interval ORDER BY at DESC, seq DESC LIMIT $2::bigint`, intervalOf(since), int64(most))
	for i := range changes {
		if err := changes[i].read(); err != nil {
			return nil, err
		}
	}
	return changes, err
}

// Undo takes back what the transaction of a change did, if nothing newer has touched its rows, and returns how many rows it
// changed. It is refused if proxies could then not use a rule that they can use now.
func (d *Database) Undo(ctx context.Context, seq int64) (int64, error) {
	var undone int64
	err := d.together(ctx, func(w *work) {
		w.stillUsable(func(policy.Wrong) error { return nil }, func(w *work) {
			for _, rows := range some[int64](w, "SELECT rate_limit_undo($1)", seq) {
				undone = rows
			}
			w.execute("SET CONSTRAINTS ALL IMMEDIATE")
		})
	})
	return undone, err
}

// read sets the fields that the rows before and after tell.
func (c *Change) read() error {
	var before, after map[string]json.RawMessage
	if err := errors.Join(unmarshalRow(c.Before, &before), unmarshalRow(c.After, &after)); err != nil {
		return fmt.Errorf("a line of rate_limit_changes: %w", err)
	}
	column := "key_id"
	if c.Kind == "key" {
		column = "id"
	}
	for _, row := range []map[string]json.RawMessage{before, after} {
		if id, found := row[column]; found {
			if err := json.Unmarshal(id, &c.KeyID); err != nil {
				return fmt.Errorf("a line of rate_limit_changes: %w", err)
			}
		}
	}
	c.What = c.what(before, after)
	return nil
}

func (c *Change) what(before, after map[string]json.RawMessage) []string {
	switch {
	case c.Ref == nil && before == nil && after == nil:
		return []string{"more than 1,000 rows, or all"}
	case before == nil && after == nil:
		return []string{"changed"}
	case before == nil:
		return []string{created}
	case after == nil:
		return []string{"deleted"}
	}
	var what []string
	for column, value := range after {
		if string(before[column]) != string(value) && column != "updated_at" {
			what = append(what, fmt.Sprintf("%s: %s → %s", column, before[column], value))
		}
	}
	sort.Strings(what)
	return what
}

// unmarshalRow leaves row as it is if there is no text.
func unmarshalRow(text json.RawMessage, row *map[string]json.RawMessage) error {
	if text == nil {
		return nil
	}
	return json.Unmarshal(text, row)
}
