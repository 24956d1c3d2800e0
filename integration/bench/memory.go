package main

import (
	"context"
	"fmt"
)

// memoryResult is what a million keys take up.
type memoryResult struct {
	keys        int64   // that are in the table
	bytesAKey   float64 // in Postgres, with indexes
	before, end int64   // the proxy's resident memory, in bytes
	live        int64   // by how much its live heap has grown
	failed      int64   // requests that were not answered with 200
}

// growth is how many bytes the proxy has grown by.
func (m *memoryResult) growth() int64 { return m.end - m.before }

// Requests of the two parts of measureMemory. The first is long enough for the
// proxy's heap to find its size.
const (
	settleRequests = 300000
	fillRequests   = 1000000
)

// measureMemory sends a request for each of a million keys through one Caddy,
// and looks at what the Caddy and the database have grown by. Rows with a
// million keys then find them there.
func (b *bench) measureMemory(ctx context.Context, r *results) error {
	wanted := b.wants(nameMemory)
	for _, row := range b.rows {
		wanted = wanted || row.proxy.filled
	}
	if !wanted {
		return nil
	}
	p, err := b.startProxy(ctx, filledCaddy)
	if err != nil {
		return err
	}
	m := &memoryResult{}
	send := func(first, keys, requests int) error {
		result, err := b.runSteady(ctx, steady{address: p.address, connections: wrkConnections, first: first, keys: keys, inTurn: true, requests: requests})
		m.failed += result.Other
		return err
	}
	b.progress("memory: %s requests for 1,000 keys", thousands(settleRequests))
	// Keys beyond the million, to leave that for the second part.
	if err := send(fillRequests, thousand.count, settleRequests); err != nil {
		return err
	}
	stats, err := p.readMemStats(ctx, true)
	if err != nil {
		return err
	}
	if m.before, err = residentBytes(p.program.pid()); err != nil {
		return err
	}
	b.progress("memory: %s requests for as many keys", thousands(fillRequests))
	if err := send(0, fillRequests, fillRequests); err != nil {
		return err
	}
	if m.end, err = residentBytes(p.program.pid()); err != nil {
		return err
	}
	after, err := p.readMemStats(ctx, true)
	if err != nil {
		return err
	}
	m.live = after.live - stats.live
	if m.keys, err = queryAt(ctx, p.dsn, "SELECT count(*) FROM rate_limit_ephemeral"); err != nil {
		return err
	}
	size, err := queryAt(ctx, p.dsn, "SELECT pg_total_relation_size('rate_limit_ephemeral')")
	if err != nil {
		return err
	}
	if m.keys < fillRequests-m.failed {
		return fmt.Errorf("memory: %d rows in the table after %d keys, of which %d were not admitted", m.keys, fillRequests, m.failed)
	}
	m.bytesAKey = float64(size) / float64(m.keys)
	r.memory = m
	return nil
}
