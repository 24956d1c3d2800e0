// Package fakedb has databases for tests that need no server, or that change what a server answers.
package fakedb

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Func is a DB that calls the function for Run, and for Exec without statements.
type Func func(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error

// Run implements pgdb.DB.
func (f Func) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	return f(ctx, timeout, statements)
}

// Exec implements pgdb.DB.
func (f Func) Exec(ctx context.Context, timeout time.Duration, _ string) error {
	return f(ctx, timeout, nil)
}

// Close implements pgdb.DB.
func (Func) Close() {}

// Down cannot be reached.
var Down Func = func(_ context.Context, _ time.Duration, statements []*pgdb.Statement) error {
	return fail(statements, pgdb.ErrConnectionLost)
}

// Silent sends no answer.
var Silent Func = func(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	health.Sleep(ctx, timeout)
	return fail(statements, pgdb.ErrNoAnswer)
}

// fail sets the error of each statement, and returns it.
func fail(statements []*pgdb.Statement, err error) error {
	for _, s := range statements {
		s.Err = err
	}
	return err
}

// Send sends statements to a DB.
type Send func(statements []*pgdb.Statement) error

// Between returns a DB that passes the statements of Run to a function, which may send them to db.
func Between(db pgdb.DB, run func(statements []*pgdb.Statement, send Send) error) pgdb.DB {
	return &between{db, run}
}

type between struct {
	pgdb.DB
	run func(statements []*pgdb.Statement, send Send) error
}

func (b *between) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	return b.run(statements, func(statements []*pgdb.Statement) error {
		return b.DB.Run(ctx, timeout, statements)
	})
}
