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
	c, failure := acquire(p, ctx)
	if failure != nil {
		return failure.Err
	}
	c.usable = false
	c.timeout = 0
	defer release(p, c)
	stop := context.AfterFunc(ctx, c.interrupt)
	err := simpleQuery(ctx, c, sql)
	c.usable = stop() && c.usable
	cancelIfLate(p, c)
	return err
}

// simpleQuery sends SQL text with any number of commands in the simple protocol. It sets c.usable.
func simpleQuery(ctx context.Context, c *conn, sql string) error {
	if err := send(c, 'Q', sql+"\x00"); err != nil {
		return connectionError(ctx, c, err)
	}
	response := readMessages(c, &pgdb.Statement{}, &prepared{simple: true}, false, true)
	if response == nil {
		c.usable = true
		return nil
	}
	e := response.failure
	if e.Code == "" {
		return connectionError(ctx, c, e.Err)
	}
	c.usable = !e.EndsConnection() && !pg.ClosesConnection(e.Code)
	return e.Err
}
