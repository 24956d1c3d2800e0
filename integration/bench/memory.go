package main

import (
	"fmt"
	"log"
	"slices"
)

// memoryResult is the memory that a million keys take.
type memoryResult struct {
	bytesAKey     float64 // in Postgres, with indexes
	before, after int     // the proxy's resident memory, in bytes
	live          int     // bytes by which the proxy's live heap has grown
	refused       int     // requests that were not answered with 200
}

// identitiesResult is the memory of a proxy that remembers as many API keys as it may, and
// then gets requests with others.
type identitiesResult struct {
	before, after int // resident, in bytes
	live          int // bytes by which the live heap has grown
	remembered    int // API keys, afterwards
	refused       int // requests that were not answered with 200
}

const (
	settleRequests = 300000 // enough for the proxy's heap to find its size
	fillRequests   = 1000000
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
	m := &memoryResult{}
	// load sends the requests, and returns the proxy's resident memory and live heap.
	load := func(first, keys, requests int) (resident, live int) {
		log.Printf("memory: %s requests for %s keys", thousands(float64(requests)), thousands(float64(keys)))
		m.refused += must(pacedLoad{address: p.address, firstKey: first, keys: keys, requests: requests}.run(b.ctx)).refused
		resident = residentBytes(p.PID())
		return resident, int(b.memStats(p).HeapAlloc)
	}
	before, liveBefore := load(fillRequests, thousand.count, settleRequests) // these keys are not among the million
	after, liveAfter := load(0, fillRequests, fillRequests)
	m.before, m.after, m.live = before, after, liveAfter-liveBefore
	var rows int
	var size float64
	must(fmt.Sscan(query(b.ctx, p.dsn, "SELECT count(*) || ' ' || pg_total_relation_size('rate_limit_ephemeral') FROM rate_limit_ephemeral"), &rows, &size))
	if rows < fillRequests-m.refused {
		check(fmt.Errorf("memory: %d rows in the table after %d keys, of which %d were not admitted", rows, fillRequests, m.refused))
	}
	m.bytesAKey = size / float64(rows)
	b.memory = m
}

// rememberRequests are more different API keys than a Caddy remembers.
const rememberRequests = 200000

// measureIdentities sends a request with each of the million API keys, and measures by how
// much the Caddy grows after it has remembered as many as it may.
func (b *bench) measureIdentities() {
	if !b.wants(nameIdentities) {
		return
	}
	p := b.startProxy(policyCaddy)
	m := &identitiesResult{}
	load := func(first, requests int) (resident, live int) {
		log.Printf("memory for API keys: %s requests, each with another one", thousands(float64(requests)))
		m.refused += must(pacedLoad{address: p.address, firstKey: first, keys: requests, requests: requests, connections: 512}.run(b.ctx)).refused
		live = int(b.memStats(p).HeapAlloc)
		return residentBytes(p.PID()), live
	}
	var liveBefore, liveAfter int
	m.before, liveBefore = load(0, rememberRequests)
	m.after, liveAfter = load(rememberRequests, policyKeys-rememberRequests)
	m.live = liveAfter - liveBefore
	m.remembered = int(b.metric(p, "caddy_pg_ratelimit_policy_identities"))
	b.identities = m
}
