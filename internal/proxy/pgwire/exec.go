package pgwire

import (
	"context"
	"errors"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// Exec implements pgdb.DB. Changes to the session, such as by SET, stay with one connection of the pool.
func (p *Pool) Exec(ctx context.Context, sql string) error {
	if strings.Contains(sql, "\x00") {
		return errors.New("pgwire: the SQL text holds a NUL byte")
	}
	c, failed := p.acquire(ctx)
	if failed != nil {
		return failed.err
	}
	c.usable = false
	c.had = 0
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
// retry, since the answer does not show how many commands took effect.
func simpleQuery(ctx context.Context, c *conn, sql string) *runError {
	if err := send(c, 'Q', sql+"\x00"); err != nil {
		return connectionLost(ctx, c, err)
	}
	var e *serverError
	for {
		kind, body, err := next(c)
		if err != nil {
			return connectionLost(ctx, c, err)
		}
		switch kind {
		case 'E':
			if e == nil {
				e = parseError(body)
			}
			if e.fatal() {
				return &runError{err: e.err(), code: e.code}
			}
		case 'Z':
			if len(body) != 1 {
				return connectionLost(ctx, c, unexpected(kind))
			}
			if body[0] != 'I' {
				c.discard = true // a transaction is still open
			}
			if e != nil {
				return &runError{err: e.err(), code: e.code, reusable: !pg.ClosesConnection(e.code)}
			}
			return nil
		case 'C', 'T', 'D', 'I':
		default:
			return connectionLost(ctx, c, unexpected(kind))
		}
	}
}
