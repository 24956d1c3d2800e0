package engine_test

import (
	"context"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// serverError is the answer to a statement that the server refuses.
func serverError(s *pgdb.Statement, code, text string) {
	s.Result, s.Rows, s.Code, s.Err = s.Result[:0], 0, code, errors.New(text)
}

// failing answers as admit does, except to the statements that fail selects: these fail. The
// other statements of their transactions are rolled back.
func failing(code, text string, fail func(s *pgdb.Statement) bool) answerFunc {
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
				serverError(s, code, text)
				break
			}
		}
		return nil
	}
}

// raw answers each statement that returns rows with these bytes.
func raw(rows int, result []byte) answerFunc {
	return func(_ context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			if returnsRows(s) {
				s.Result, s.Rows = append(s.Result, result...), rows
			}
		}
		return nil
	}
}

// between is a DB with a function of a test between the store and the database.
type between struct {
	pgdb.DB
	run func(ctx context.Context, statements []*pgdb.Statement, send answerFunc) error
}

func (d *between) Run(ctx context.Context, statements []*pgdb.Statement) error {
	return d.run(ctx, statements, d.DB.Run)
}
