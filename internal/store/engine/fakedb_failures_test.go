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

// failWhere is like admit, but statements for which match returns true get an error. The other statements of
// their transactions are rolled back.
func failWhere(code, text string, match func(s *pgdb.Statement) bool) answerFunc {
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
				if !match(s) {
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
