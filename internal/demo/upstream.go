package main

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// startUpstream starts the server that Caddy protects, on a free port of
// loopback, and tells its address.
func startUpstream() (address string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(hello), ReadHeaderTimeout: 10 * time.Second}
	// It ends with Close, and then returns ErrServerClosed.
	go func() { _ = server.Serve(l) }()
	return l.Addr().String(), server.Close, nil
}

func hello(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Hello from %s at %s.\n", r.URL.Path, time.Now().Format(time.TimeOnly))
}
