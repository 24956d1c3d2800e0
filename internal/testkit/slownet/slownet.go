// Package slownet gives tests a network with a delay and with faults.
package slownet

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy forwards connections to a server. Data arrives half a round trip after it
// was sent, in each direction; the delay does not limit the throughput. The end of
// a connection is delayed as well, its beginning is not.
type Proxy struct {
	Address string // on which the proxy listens

	target  string
	delay   atomic.Int64   // half a round trip, in nanoseconds
	running sync.WaitGroup // goroutines
	faults  atomic.Pointer[Faults]

	mu      sync.Mutex // guards all that follows
	changed *sync.Cond // hangs has changed
	closed  bool
	down    bool
	hangs   bool
	made    uint64            // connections
	conns   map[net.Conn]bool // open ones, on both sides
}

// Listen starts a proxy to target, a host and a port. It ends with the test.
func Listen(t testing.TB, target string, roundTrip time.Duration) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Address: listener.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	p.SetRoundTrip(roundTrip)
	p.changed = sync.NewCond(&p.mu)
	p.running.Go(func() { p.accept(listener) })
	t.Cleanup(func() {
		_ = listener.Close()
		p.closeAll(true)
		p.running.Wait()
	})
	return p
}

// ListenFor starts a proxy to the server of a DSN, a postgres:// URL, and returns
// it and the DSN that leads through it.
func ListenFor(t testing.TB, dsn string, roundTrip time.Duration) (*Proxy, string) {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := Listen(t, address.Host, roundTrip)
	address.Host = p.Address
	return p, address.String()
}

// SetRoundTrip changes the delay of what is sent from now on.
func (p *Proxy) SetRoundTrip(d time.Duration) { p.delay.Store(int64(d / 2)) }

// CloseConnections closes the connections that are open, at once and without a
// word to either side.
func (p *Proxy) CloseConnections() { p.closeAll(false) }

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		number, ok := p.add(client, server)
		if !ok {
			continue
		}
		faults := p.faults.Load()
		p.running.Go(func() {
			var up sync.WaitGroup
			up.Go(func() { p.forward(client, server, newDamage(faults, 2*number)) })
			p.forward(server, client, newDamage(faults, 2*number+1))
			up.Wait()
			p.remove(client, server)
		})
	}
}

// add keeps the connections for closeAll, and returns their number. If the proxy is closed or
// the network is down, add closes them and returns false.
func (p *Proxy) add(conns ...net.Conn) (number uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	for _, c := range conns {
		if p.closed || p.down {
			_ = c.Close()
		} else {
			p.conns[c] = true
		}
	}
	return p.made, !p.closed && !p.down
}

func (p *Proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *Proxy) closeAll(forGood bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if forGood {
		p.closed, p.hangs = true, false
		p.changed.Broadcast()
	}
	for c := range p.conns {
		_ = c.Close()
	}
}

// chunk is data on its way. Nil data is the end of the connection.
type chunk struct {
	data    []byte
	arrival time.Time
}

// forward copies what from sends to the other connection, and its end.
func (p *Proxy) forward(from, to net.Conn, d *damage) {
	chunks := make(chan chunk, 4096)
	go func() {
		defer close(chunks)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				chunks <- chunk{append([]byte(nil), buffer[:n]...), time.Now().Add(time.Duration(p.delay.Load()))}
			}
			if err != nil {
				chunks <- chunk{nil, time.Now().Add(time.Duration(p.delay.Load()))}
				return
			}
		}
	}()
	for c := range chunks {
		time.Sleep(time.Until(c.arrival))
		p.waitWhileHanging()
		if c.data == nil {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			continue
		}
		if !p.write(to, c.data, d) {
			_ = from.Close() // ends the reader; what it still sends is dropped
			for range chunks {
			}
			return
		}
	}
}

// write writes data as the faults allow, and reports whether the connection goes on.
func (p *Proxy) write(to net.Conn, data []byte, d *damage) bool {
	for len(data) > 0 {
		n := len(data)
		if p.faults.Load() != nil {
			n = d.next(n)
		}
		if n == 0 {
			_ = to.Close()
			return false
		}
		if _, err := to.Write(data[:n]); err != nil {
			return false
		}
		data = data[n:]
	}
	return true
}
