package pgwire

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Exec implements pgdb.DB. Changes to the session, such as by SET, affect one connection of the pool.
func (p *Pool) Exec(ctx context.Context, timeout time.Duration, sql string) error {
	if strings.Contains(sql, "\x00") {
		return errors.New("pgwire: the SQL text holds a NUL byte")
	}
	c, failure := acquire(p, ctx, timeout)
	if failure != nil {
		return pg.NotSent(ctx, failure.Err)
	}
	runOn(p, ctx, timeout, c, func() bool {
		failure = simpleQuery(ctx, c, sql)
		return failure == nil || !failure.EndsConnection() && !pg.ClosesConnection(failure.Code)
	})
	switch {
	case failure == nil:
		return nil
	case failure.EndsConnection():
		return pg.Outcome(ctx, failure.Err)
	}
	return failure.Err
}

// simpleQuery sends SQL text with any number of commands in the simple protocol.
func simpleQuery(ctx context.Context, c *conn, sql string) *pg.ServerError {
	startTimeout(ctx, c)
	if err := send(c, 'Q', sql+"\x00"); err != nil {
		return &pg.ServerError{Err: connectionError(c, err)}
	}
	response := readMessages(c, &pgdb.Statement{}, &prepared{simple: true}, false, true)
	if response == nil {
		return nil
	}
	if response.failure.Code == "" {
		response.failure.Err = connectionError(c, response.failure.Err)
	}
	return response.failure
}
