// Package script decides a list of requests that is given as text, and returns the
// decisions as text. A test runs it compiled and interpreted, and compares the results.
// So it uses only what Yaegi can interpret.
package script

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	counts "github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Memory decides a script in memory.
//
// A script has one limit on each line: "prefix algorithm burst durable limit". Then come
// an empty line, and one request on each line: "take", "peek" or "reset", the time in
// microseconds since the Unix epoch, and the hits as limit:key:cost, where limit is the
// number of a limit, from 0. The result has one line for each request.
func Memory(text string) string {
	clock := time.Time{}
	store, err := memory.New(memory.Options{Now: func() time.Time { return clock }})
	if err != nil {
		return err.Error()
	}
	return run(store, &clock, text)
}

// Postgres decides a script in a database.
func Postgres(dsn, text string) string {
	clock := time.Time{}
	db, err := pgwire.Open(dsn, pgwire.Options{MaxConns: 1})
	if err != nil {
		return err.Error()
	}
	store, err := counts.Open(db, engine.Options{Now: func() time.Time { return clock }, NoRefusals: true,
		CleanupProbability: -1, Workers: 1}, nil)
	if err != nil {
		return err.Error()
	}
	defer store.Close()
	return run(store, &clock, text)
}

func run(store ratelimit.Store, clock *time.Time, text string) string {
	parts := strings.SplitN(text, "\n\n", 2)
	var limits []*ratelimit.Limit
	for _, line := range strings.Split(parts[0], "\n") {
		l, err := parseLimit(line)
		if err != nil {
			return err.Error()
		}
		limits = append(limits, l)
	}
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(parts[1]), "\n") {
		out = append(out, request(store, clock, limits, strings.Fields(line)))
	}
	return strings.Join(out, "\n")
}

func parseLimit(line string) (*ratelimit.Limit, error) {
	fields := strings.SplitN(line, " ", 5)
	c := settings.Values{"prefix": fields[0], "algorithm": fields[1], "burst": fields[2],
		"durable": fields[3],
		"limit":   fields[4]}
	if c["burst"] == "-" {
		c["burst"] = ""
	}
	read, err := settings.ReadLimit(c)
	if err != nil {
		return nil, err
	}
	return &read.Limit, nil
}

func request(store ratelimit.Store, clock *time.Time, limits []*ratelimit.Limit, fields []string) string {
	now, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return err.Error()
	}
	*clock = time.UnixMicro(now)
	var hits []ratelimit.Hit
	for _, field := range fields[2:] {
		parts := strings.Split(field, ":")
		at, err := strconv.Atoi(parts[0])
		if err != nil {
			return err.Error()
		}
		cost, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return err.Error()
		}
		hits = append(hits, ratelimit.Hit{Limit: limits[at], Key: parts[1], Cost: cost,
			Peek: fields[0] == "peek", Secret: parts[1] == "secret"})
	}
	if fields[0] == "reset" {
		if err := store.Reset(context.Background(), time.Minute, hits); err != nil {
			return err.Error()
		}
		return "reset"
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(context.Background(), time.Minute, hits, decisions); err != nil {
		return err.Error()
	}
	text := ""
	for _, d := range decisions {
		text += fmt.Sprintf("%v %d %d %d %d; ", d.Allowed, d.Limit, d.Remaining, d.Reset.UnixMicro(),
			int64(d.RetryAfter))
	}
	return text
}
