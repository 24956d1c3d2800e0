package main

import (
	"fmt"
	"log"
	"slices"
)

// measureMemory sends one request for each of a million keys through one Caddy, and
// measures by how much the Caddy and the database have grown. The rows with a
// million keys use this Caddy afterwards.
func (b *bench) measureMemory() {
	filled := func(r *row) bool { return r.proxy == filledCaddy || r.proxy.shares == filledCaddy }
	if !b.wants(nameMemory) && !slices.ContainsFunc(b.proxyRows, filled) {
		return
	}
	p := b.startProxy(filledCaddy)
	log.Print("memory: requests for a million keys")
	b.runWrk(p, thousand, 10, 0) // so long that the heap finds its size
	before, liveBefore := b.memory(p)
	wrong := b.sendInTurn(p, 0, million, thousand.connections)
	after, live := b.memory(p)
	var rows int
	var size float64
	must(fmt.Sscan(query(b.ctx, p.dsn, "SELECT count(*) || ' ' || pg_total_relation_size('rate_limit_ephemeral') FROM rate_limit_ephemeral"), &rows, &size))
	if rows+wrong < 0.9*million {
		check(fmt.Errorf("memory: only %d rows in the table", rows))
	}
	b.figure(nameMemory, "%+.2f MB live, %+.1f MB resident (%.0f MB before) in Caddy for %d keys; %.0f bytes a key in Postgres, with indexes",
		live-liveBefore, after-before, before, rows, size/float64(rows))
	b.wrong(wrong, nameMemory)
}

// memory is a Caddy's resident memory and its live heap after a garbage collection, in MB.
func (b *bench) memory(p *proxy) (resident, live float64) {
	b.askAdmin(p, "/debug/pprof/heap?gc=1")
	live = float64(b.memStats(p).HeapAlloc) / (1 << 20)
	return residentBytes(p.PID()) / (1 << 20), live
}
