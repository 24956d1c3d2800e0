package pgwire

import (
	"context"
	"errors"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Exec implements pgdb.DB. Changes to the session, such as by SET, affect one connection of the pool.
func (p *Pool) Exec(ctx context.Context, sql string) error {
	if strings.Contains(sql, "\x00") {
		return errors.New("pgwire: the SQL text holds a NUL byte")
	}
	c, failed := acquire(p, ctx)
	if failed != nil {
		return failed.err
	}
	c.usable = false
	c.timeout = 0
	defer release(p, c)
	stop := context.AfterFunc(ctx, c.interrupt)
	failed = simpleQuery(ctx, c, sql)
	c.usable = stop()
	if failed != nil {
		noteFailure(p, c, failed)
		return failed.err
	}
	return nil
}

// simpleQuery sends SQL text with any number of commands in the simple protocol. Its errors never allow a
// retry, because the response does not show how many commands took effect.
func simpleQuery(ctx context.Context, c *conn, sql string) *runError {
	if err := send(c, 'Q', sql+"\x00"); err != nil {
		return connectionLost(ctx, c, err)
	}
	response := readMessages(c, &pgdb.Statement{}, &prepared{simple: true}, false, true)
	switch {
	case response == nil:
		return nil
	case response.server == nil:
		return connectionLost(ctx, c, response.err)
	}
	return &runError{err: response.server.err(), code: response.server.code,
		reusable: !response.server.fatal() && !pg.ClosesConnection(response.server.code)}
}
