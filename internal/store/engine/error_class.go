package engine

import (
	"context"
	"errors"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// isOnPurpose reports whether a statement has failed by onPurposeSQL.
func isOnPurpose(s *pgdb.Statement) bool {
	return s.Code == sqlstate.InvalidText && s.Err != nil && strings.Contains(s.Err.Error(), onPurpose)
}

// classOf is the class of an SQLSTATE.
func classOf(code string) string {
	if len(code) >= 2 {
		for _, class := range sqlstate.Classes {
			if class == code[:2] {
				return class
			}
		}
	}
	return sqlstate.OtherClass
}

// countErrors counts the errors of a call of DB.Run with these statements. failure is what Run
// returned: it counts as one error, however many statements it leaves without an answer.
func (c *counts) countErrors(statements []*pgdb.Statement, failure error) {
	if failure != nil {
		c.addError(classOfFailure(statements, failure))
		return
	}
	for _, s := range statements {
		// A transaction of several limits that do not fit fails on purpose.
		if s.Err != nil && !isOnPurpose(s) && !errors.Is(s.Err, pgdb.ErrRolledBack) {
			c.addError(classOf(s.Code))
		}
	}
}

// classOfFailure is the class of an error of DB.Run.
func classOfFailure(statements []*pgdb.Statement, failure error) string {
	if errors.Is(failure, context.DeadlineExceeded) {
		return sqlstate.TimeoutClass
	}
	for _, s := range statements {
		if s.Err != nil && s.Code != "" && !isOnPurpose(s) {
			return classOf(s.Code)
		}
	}
	return sqlstate.ConnectionClass
}
