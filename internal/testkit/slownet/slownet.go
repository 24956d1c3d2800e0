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

// Proxy forwards connections to a server. In each direction, data and the end of a connection arrive half a
// round trip after they were sent. The delay does not limit the throughput. The start of a connection has no
// delay.
type Proxy struct {
	Address string // the address on which the proxy listens

	target  string
	delay   atomic.Int64   // half a round trip, in nanoseconds
	turns   atomic.Int64   // see Turns
	running sync.WaitGroup // goroutines of the proxy

	mu      sync.Mutex // guards all that follows
	changed *sync.Cond // signals a change of hangs
	closed  bool
	hangs   bool
	conns   map[net.Conn]bool // the open connections, on both sides
}

// Listen starts a proxy to target, a host and a port. The proxy ends with the test.
func Listen(t testing.TB, target string, roundTrip time.Duration) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return Serve(t, listener, target, roundTrip)
}

// Serve is like Listen, but uses a listener of the caller.
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

// ListenFor starts a proxy to the server of a DSN, a postgres:// URL. It returns the proxy and a DSN that
// connects through it.
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

// SetRoundTrip changes the delay of data that is sent from now on.
func (p *Proxy) SetRoundTrip(d time.Duration) { p.delay.Store(int64(d / 2)) }

// Turns returns the number of round trips of clients. A round trip begins when a client sends data at the
// start of its connection or after a response.
func (p *Proxy) Turns() int64 { return p.turns.Load() }

// CloseConnections closes the open connections immediately, on both sides.
func (p *Proxy) CloseConnections() { p.closeAll(false) }

// SetHanging makes the network hold all data back, or continue where it stopped.
func (p *Proxy) SetHanging(hangs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangs = hangs && !p.closed
	p.changed.Broadcast()
}

// waitWhileHanging waits until the network forwards data.
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
			var pending atomic.Bool // the client has sent data since the server's last response
			up.Go(func() {
				p.forward(client, server, func() {
					if !pending.Swap(true) {
						p.turns.Add(1)
					}
				})
			})
			p.forward(server, client, func() { pending.Store(false) })
			up.Wait()
			p.remove(client, server)
		})
	}
}

// add registers the connections for closeAll. If the proxy is closed, add closes them and returns false.
func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
		} else {
			p.conns[c] = true
		}
	}
	return !p.closed
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

// chunk is data in transit. Nil data is the end of the connection.
type chunk struct {
	data    []byte
	arrival time.Time
}

// forward copies data, and the end of the connection, from src to dst. It calls arrives before each write.
func (p *Proxy) forward(src, dst net.Conn, arrives func()) {
	chunks := make(chan chunk, 4096)
	go func() {
		defer close(chunks)
		buffer := make([]byte, 64<<10)
		for {
			n, err := src.Read(buffer)
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
			if half, ok := dst.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			continue
		}
		arrives()
		if _, err := dst.Write(c.data); err != nil {
			_ = src.Close() // ends the reader; drop what it still sends
			for range chunks {
			}
			return
		}
	}
}
