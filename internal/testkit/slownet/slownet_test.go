package slownet

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// echo starts a server that sends back what it gets.
func echo(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func TestDataTakesARoundTrip(t *testing.T) {
	for _, roundTrip := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
		c, err := net.Dial("tcp", Listen(t, echo(t), roundTrip).Address)
		if err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		sent := bytes.Repeat([]byte("0123456789"), 1<<20) // 10 MB take no longer than a byte
		go func() {
			_, _ = c.Write(sent)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
		if took := time.Since(started); took < roundTrip || took > roundTrip+20*time.Second {
			t.Errorf("a round trip of %v took %v", roundTrip, took)
		}
		_ = c.Close()
	}
}

func TestHangingAndDown(t *testing.T) {
	p := Listen(t, echo(t), 0)
	c, err := net.Dial("tcp", p.Address)
	if err != nil {
		t.Fatal(err)
	}
	p.SetHanging(true)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, _ := c.Read(make([]byte, 1)); n != 0 {
		t.Error("a network that hangs forwards")
	}
	p.SetHanging(false)
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 1 {
		t.Errorf("a network that goes on: %v", err)
	}
	p.SetDown(true)
	for range 2 {
		if n, _ := c.Read(make([]byte, 1)); n != 0 {
			t.Error("a network that is down forwards")
		}
		if c, err = net.Dial("tcp", p.Address); err != nil {
			t.Fatal(err)
		}
	}
	p.SetDown(false)
	if c, err = net.Dial("tcp", p.Address); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 1 {
		t.Errorf("a network that is up again: %v", err)
	}
}
