package engine_test

import (
	"context"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// failStatement sets the result of a statement to an error of the server.
func failStatement(s *pgdb.Statement, code, text string) {
	s.Result, s.Rows, s.Code, s.Err = s.Result[:0], 0, code, errors.New(text)
}

// failWhere is like admit, but fails the statements that fail selects. The other statements of their
// transactions are rolled back.
func failWhere(code, text string, fail func(s *pgdb.Statement) bool) answerFunc {
	return func(ctx context.Context, statements []*pgdb.Statement) error {
		for from := 0; from < len(statements); {
			to := from + 1
			for statements[to-1].Joined && to < len(statements) {
				to++
			}
			transaction := statements[from:to]
			from = to
			if err := admit(ctx, transaction); err != nil {
				return err
			}
			for _, s := range transaction {
				if !fail(s) {
					continue
				}
				for _, other := range transaction {
					other.Err = pgdb.ErrRolledBack
				}
				failStatement(s, code, text)
				break
			}
		}
		return nil
	}
}

// answerBytes sets the result of each statement that returns rows to these bytes.
func answerBytes(rows int, result []byte) answerFunc {
	return func(_ context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			if returnsRows(s) {
				s.Result, s.Rows = append(s.Result, result...), rows
			}
		}
		return nil
	}
}

// betweenDB is a DB that calls a function of a test instead of Run. The function may call send, the Run of
// the database.
type betweenDB struct {
	pgdb.DB
	run func(ctx context.Context, statements []*pgdb.Statement, send answerFunc) error
}

func (d *betweenDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	return d.run(ctx, statements, d.DB.Run)
}
