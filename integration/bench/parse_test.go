package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	s, err := parseStat("42 (a name) with) S 7 42 42 0 -1 4194304 1 2 3 4 150 50 20 10 20 0 4 0 100 1000 10")
	if err != nil {
		t.Fatal(err)
	}
	if want := (procStat{parent: 7, own: 2 * time.Second, reaped: 300 * time.Millisecond}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	for _, text := range []string{"", "42 (x) S 7", "42 (x) S y 42 42 0 -1 4194304 1 2 3 4 150 50 20 10 20"} {
		if _, err := parseStat(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestParseWrk(t *testing.T) {
	r, err := parseWrk("Running 1s test\n...\nRESULT {\"requests\":5000,\"microseconds\":2000000,\"p50\":1500,\"p99\":9000,\"refused\":4,\"failed\":2}\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (wrkResult{Requests: 5000, Microseconds: 2e6, P50: 1500, P99: 9000, Refused: 4, Failed: 2}); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
	if r.rate() != 2500 {
		t.Errorf("%v requests/s, want 2500", r.rate())
	}
	for _, text := range []string{"", "unable to connect", "RESULT {", `RESULT {"requests":0,"microseconds":1}`} {
		if _, err := parseWrk(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestParseMemStats(t *testing.T) {
	m, err := parseMemStats("heap profile: 1: 2 [3: 4]\n\n# runtime.MemStats\n# Alloc = 5\n# Mallocs = 123\n# Frees = 7\n# HeapAlloc = 456\n")
	if want := (memStats{mallocs: 123, live: 456}); err != nil || m != want {
		t.Errorf("%+v, %v, want %+v", m, err, want)
	}
	if _, err := parseMemStats("<html>"); err == nil {
		t.Error("no error for a page without the figures")
	}
}

func TestAnswerComesInPieces(t *testing.T) {
	const whole = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
	for cut := 1; cut < len(whole); cut++ {
		var a answer
		for round := 0; round < 2; round++ {
			if status, err := a.add([]byte(whole[:cut])); status != 0 || err != nil {
				t.Fatalf("after %d bytes: %d, %v", cut, status, err)
			}
			if status, err := a.add([]byte(whole[cut:])); status != 429 || err != nil {
				t.Fatalf("cut at %d: %d, %v", cut, status, err)
			}
		}
	}
}

func TestAnswerRefusesWhatItCannotRead(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
		"HTTP/1.1 x00 OK\r\nContent-Length: 0\r\n\r\n",
		"SSH-2.0\r\nContent-Length: 0\r\n\r\n",
	} {
		var a answer
		if status, err := a.add([]byte(text)); err == nil {
			t.Errorf("%q: status %d", text, status)
		}
	}
}

func TestAppendKey(t *testing.T) {
	for n, want := range map[int]string{0: "10.0.0.0", 255: "10.0.0.255", 65535: "10.0.255.255", 999999: "10.15.66.63"} {
		if key := string(appendKey(nil, n)); key != want {
			t.Errorf("%d: %s, want %s", n, key, want)
		}
	}
}

func TestCaddyfile(t *testing.T) {
	text := caddyfile("127.0.0.1:20001", "127.0.0.1:20002", "postgres://x", &limitSpec{algorithm: "gcra", limit: "5 1m", durable: true, sync: true, zones: 3})
	for want, times := range map[string]int{
		"algorithm gcra\n": 3, "limit 5 1m\n": 3, "durable\n": 3, "synchronous_commit\n": 3, "zone ": 2, "on_error deny\n": 1,
	} {
		if n := strings.Count(text, want); n != times {
			t.Errorf("%q occurs %d times, want %d:\n%s", want, n, times, text)
		}
	}
	if strings.Count(text, "{") != strings.Count(text, "}") {
		t.Errorf("braces do not match:\n%s", text)
	}
	if text = caddyfile("127.0.0.1:20001", "127.0.0.1:20002", "", nil); strings.Contains(text, "pg_ratelimit") {
		t.Errorf("a limit, where none was asked for:\n%s", text)
	}
}
