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
	turns   atomic.Int64   // see Turns
	running sync.WaitGroup // goroutines

	mu      sync.Mutex // guards all that follows
	changed *sync.Cond // hangs has changed
	closed  bool
	down    bool
	hangs   bool
	conns   map[net.Conn]bool // open ones, on both sides
}

// Listen starts a proxy to target, a host and a port. It ends with the test.
func Listen(t testing.TB, target string, roundTrip time.Duration) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return Serve(t, listener, target, roundTrip)
}

// Serve is like Listen, with a listener of the test.
func Serve(t testing.TB, listener net.Listener, target string, roundTrip time.Duration) *Proxy {
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

// Turns is the number of times that a client has sent something at the beginning of its connection or
// after an answer: its round trips.
func (p *Proxy) Turns() int64 { return p.turns.Load() }

// CloseConnections closes the open connections immediately, and without a
// word to either side.
func (p *Proxy) CloseConnections() { p.closeAll(false) }

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
		if !p.add(client, server) {
			continue
		}
		p.running.Go(func() {
			var up sync.WaitGroup
			var asked atomic.Bool // and not answered yet
			up.Go(func() {
				p.forward(client, server, func() {
					if !asked.Swap(true) {
						p.turns.Add(1)
					}
				})
			})
			p.forward(server, client, func() { asked.Store(false) })
			up.Wait()
			p.remove(client, server)
		})
	}
}

// add keeps the connections for closeAll. If the proxy is closed or the network is down, add
// closes them and returns false.
func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed || p.down {
			_ = c.Close()
		} else {
			p.conns[c] = true
		}
	}
	return !p.closed && !p.down
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

// forward copies what from sends to the other connection, and its end. It calls arrives before it
// writes something.
func (p *Proxy) forward(from, to net.Conn, arrives func()) {
	chunks := make(chan chunk, 4096)
	go func() {
		defer close(chunks)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				chunks <- chunk{append([]byte(nil), buffer[:n]...),
					time.Now().Add(time.Duration(p.delay.Load()))}
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
		arrives()
		if _, err := to.Write(c.data); err != nil {
			_ = from.Close() // ends the reader; what it still sends is dropped
			for range chunks {
			}
			return
		}
	}
}
