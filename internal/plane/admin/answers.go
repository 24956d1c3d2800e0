package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

// Row is a row of an answer: the columns of the question, and their values. A value is nil, a bool, an int32, an int64, a
// float64, a string, a time.Time, a []any of texts, a json.RawMessage, or, where it was added, anything that is JSON.
type Row struct {
	Names  []string // are shared by the rows of an answer
	Values []any
}

// Get is the value of a column; nil also where the question has no such column.
func (r *Row) Get(name string) any {
	if i := slices.Index(r.Names, name); i >= 0 {
		return r.Values[i]
	}
	return nil
}

// Text is the value of a column that has texts; "" for NULL.
func (r *Row) Text(name string) string {
	text, _ := r.Get(name).(string)
	return text
}

// Set sets the value of a column, which may be new.
func (r *Row) Set(name string, value any) {
	if i := slices.Index(r.Names, name); i >= 0 {
		r.Values[i] = value
		return
	}
	r.Names, r.Values = append(slices.Clip(r.Names), name), append(r.Values, value)
}

// only returns the row with some of its columns.
func (r *Row) only(names ...string) Row {
	some := Row{Names: names}
	for _, name := range names {
		some.Values = append(some.Values, r.Get(name))
	}
	return some
}

// MarshalJSON makes an object of the columns, in their order.
func (r Row) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	text.WriteByte('{')
	for i, name := range r.Names {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(`"` + name + `":`)
		if err := encoder.Encode(r.Values[i]); err != nil {
			return nil, err
		}
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

// Ask asks a question: a SELECT of the tables, views and functions that docs/policy.md names.
func (d *Database) Ask(ctx context.Context, question string, args ...any) ([]Row, error) {
	var names []string
	return query(ctx, d, func(found pgx.CollectableRow) (Row, error) {
		values, err := found.Values()
		if names == nil {
			for _, f := range found.FieldDescriptions() {
				names = append(names, f.Name)
			}
		}
		for i, value := range values {
			if t, isTime := value.(time.Time); isTime {
				values[i] = t.UTC()
			} else if found.FieldDescriptions()[i].DataTypeOID == pgtype.JSONOID && value != nil {
				values[i] = json.RawMessage(bytes.Clone(found.RawValues()[i])) // keeps whole numbers, and the order
			}
		}
		return Row{slices.Clip(names), values}, err
	}, question, args)
}

// ask is Ask, unless a statement has failed.
func (w *work) ask(question string, args ...any) (all []Row) {
	if w.err == nil {
		all, w.err = w.Ask(w.ctx, question, args...)
	}
	return all
}

// UsersQuestion are the users of a tier, or of all tiers for "", in an order: ByName, or ByLast: first those that have
// sent no request for the longest time, by the history. At most $2 of them, with what they did.
func UsersQuestion(order string) string {
	last := ""
	if order == ByLast {
		last = "(SELECT max(h.last_request) FROM rate_limit_metrics h WHERE h.granularity = 'day' AND h.user_id = u.user_id) NULLS FIRST, "
	}
	return `SELECT u.user_id AS "user", u.tier, u.state, r.* FROM (
	SELECT u.* FROM rate_limit_user_states u WHERE $1::text IN ('', u.tier) ORDER BY ` + last + `u.user_id LIMIT $2::bigint
) AS u LEFT JOIN LATERAL rate_limit_recent(u.user_id) AS r ON true`
}

// The orders of users.
const (
	ByName = "name"
	ByLast = "last"
)

// KeysQuestion are the API keys of a user, or of all users for "", the oldest first, at most $2 of them, with what was
// done with each.
var KeysQuestion = `SELECT ` + keyColumns + `, r.*
FROM (SELECT k.* FROM rate_limit_key_states k WHERE $1::text IN ('', k.user_id) ORDER BY k.id LIMIT $2::bigint) AS k
	LEFT JOIN LATERAL rate_limit_recent(k.user_id, k.id) AS r ON true`

// keyColumns are those of a row k of rate_limit_key_states.
var keyColumns = `k.id, k.hint, k.name, k.user_id AS "user", k.tier, k.state, ` + endSQL("k.expires_at") + ` AS expires_at, ` + endSQL("k.revoked_at") + ` AS revoked_at, k.revoked_by, k.replaced_by, k.created_at`

// answerSQL are columns of a table in an answer.
func answerSQL(all []columns.Column, table string) string {
	var items []string
	for i := range all {
		c := &all[i]
		column, name := table+"."+c.Name, c.InFile()
		switch c.Kind {
		case columns.Digest:
			continue
		case columns.Networks, columns.Day:
			column = column + "::text" + map[bool]string{true: "[]"}[c.Kind.IsList()]
		case columns.KeyDigest:
			name = c.Name
		case columns.Duration: // in seconds
			column = "extract(epoch FROM " + column + ")::float8"
			if name == "per" {
				name = "seconds"
			}
		case columns.Range:
			items = append(items, beginSQL("lower("+column+")")+" AS "+name+"_from")
			column, name = endSQL("upper("+column+")"), name+"_until"
		case columns.Moment:
			column = endSQL(column)
		}
		items = append(items, column+` AS "`+name+`"`)
	}
	return strings.Join(items, ", ")
}
