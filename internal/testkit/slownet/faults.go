package slownet

import "math/rand/v2"

// Faults are what a network does beside delaying data.
type Faults struct {
	// Seed makes the random numbers. The same connections, counted from the proxy's
	// start, get the same faults with the same seed.
	Seed uint64

	// Bytes is how many bytes a connection lasts on the average, in each direction. Then it
	// is cut in the middle of what is being sent.
	Bytes int

	// Piece is the most bytes that are sent at once.
	Piece int
}

// SetFaults gives faults to the connections that are made from now on, and takes them from
// the connections that exist. Nil is none.
func (p *Proxy) SetFaults(f *Faults) { p.faults.Store(f) }

// SetHanging makes the network forward nothing, or go on where it stopped.
func (p *Proxy) SetHanging(hangs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangs = hangs && !p.closed
	p.changed.Broadcast()
}

// SetDown closes all connections, and refuses new ones until the network is up again.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.closeAll(false)
	}
}

// waitWhileHanging returns when the network forwards.
func (p *Proxy) waitWhileHanging() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.hangs {
		p.changed.Wait()
	}
}

// damage is the faults of one direction of one connection.
type damage struct {
	faults *Faults // nil is none
	random *rand.Rand
	left   int // how many bytes are sent before the connection is cut
}

// newDamage is for a direction of the connection with that number.
func newDamage(f *Faults, number uint64) *damage {
	if f == nil {
		return &damage{}
	}
	random := rand.New(rand.NewPCG(f.Seed, number))
	return &damage{faults: f, random: random, left: random.IntN(2 * f.Bytes)}
}

// next returns how many of n bytes are sent at once. It is 0 if the connection is cut now.
func (d *damage) next(n int) int {
	if d.faults == nil {
		return n
	}
	n = min(n, 1+d.random.IntN(d.faults.Piece), d.left)
	d.left -= n
	return n
}
