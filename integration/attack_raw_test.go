package integration

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// rawHeaders are lines that no client of net/http sends.
var rawHeaders = []string{
	"Host: example.com", "Host: a, b", "Host:", "Connection: close, X-Api-Key, Authorization", "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
	"Expect: 100-continue", "Expect: x", "TE: trailers", "Trailer: X-Cost, X-Api-Key", "Content-Length: 3", "Content-Length: -1", "Content-Length: 3, 4", "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked",
	"Transfer-Encoding: gzip, chunked", "Transfer-Encoding : chunked", "Transfer-Encoding: identity", "X-Cost : 5", " X-Cost: 5", ": empty", "X-Cost: 1\r\n 000", "X\x00Cost: 1", "X-Cost: 1\x00", "X_Cost: 1", "Cookie: id=a; id=b; $x",
	"X-Forwarded-For: 203.0.113.1", "Forwarded: for=203.0.113.1;host=x", "X-Real-Ip: 203.0.113.1", "X-Forwarded-Host: a\tb", "X-Ratelimit-User: ann", "X-Original-Url: /slow/", "Range: bytes=0-1,0-1", "Proxy-Authorization: Bearer x",
}

// raw are the bytes of some requests, most of which a server can answer.
func (by attacker) raw() []byte {
	var b bytes.Buffer
	for n := 1 + by.IntN(3); n > 0; n-- {
		method := []string{"GET", "GET", "GET", "POST", "POST", "PUT", "OPTIONS", "CONNECT", "PRI", "get", "G ET", "TRACE", ""}[by.IntN(13)]
		target := []string{"/" + by.path(), "/", "*", "//login", "http://example.com/login", "http://[::1", "/%zz", "/a b", "/\x80", "login", "?x", "/?" + strings.Repeat("a&", by.IntN(2000)), "/#x", "example.com:80"}[by.IntN(14)]
		version := []string{"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "http/1.1", ""}[by.IntN(9)]
		if by.IntN(3) > 0 {
			method, target, version = "GET", "/"+by.path(), "HTTP/1.1"
		}
		fmt.Fprintf(&b, "%s %s %s\r\n", method, target, version)
		if by.IntN(10) > 0 {
			b.WriteString("Host: example.com\r\n")
		}
		for _, name := range attackedHeaders {
			if by.IntN(3) > 0 {
				continue
			}
			if by.IntN(2) == 0 {
				name = strings.Map(func(c rune) rune {
					if by.IntN(2) == 0 {
						return []rune(strings.ToUpper(string(c)))[0]
					}
					return []rune(strings.ToLower(string(c)))[0]
				}, name)
			}
			fmt.Fprintf(&b, "%s: %s\r\n", name, strings.ReplaceAll(by.text(), "\t", " "))
		}
		for range by.IntN(3) {
			b.WriteString(rawHeaders[by.IntN(len(rawHeaders))] + "\r\n")
		}
		if by.IntN(3) == 0 {
			b.WriteString("Transfer-Encoding: chunked\r\nTrailer: X-Cost\r\n\r\n" + []string{"3\r\nabc\r\n", "3;x=\"y\r\nabc\r\n", "-1\r\n", "ffffffffffffffff\r\n", "0x3\r\nabc\r\n", ""}[by.IntN(6)] +
				"0\r\n" + []string{"", "X-Cost: 0\r\n", "X-Api-Key: x\r\n", "Host: y\r\n", "bad\r\n"}[by.IntN(5)])
		}
		b.WriteString("\r\n")
	}
	text := b.Bytes()
	for by.IntN(4) == 0 {
		at := by.IntN(len(text))
		switch by.IntN(3) {
		case 0:
			text[at] = byte(by.IntN(256))
		case 1:
			text = slices.Delete(text, at, min(at+1+by.IntN(8), len(text)-1))
		default:
			text = slices.Insert(text, at, []byte{'\r', '\n', 0, ' ', ':', 0xff}[by.IntN(6)])
		}
	}
	return text
}

// sendRaw sends bytes, and checks the first answer. A server that waits for more bytes gives none.
func sendRaw(address string) func(by attacker, _ *http.Client) (int, string) {
	return func(by attacker, _ *http.Client) (int, string) {
		sent := by.raw()
		conn, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err != nil {
			return 0, err.Error()
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second)) // a connection never refuses one
		_, _ = conn.Write(sent)                           // the server may have closed the connection after some of it
		wrong := func(text string) string { return fmt.Sprintf("%.600q: %s", sent, text) }
		r := &http.Request{Method: "GET"}
		for answers := bufio.NewReader(conn); ; {
			response, err := http.ReadResponse(answers, r)
			var failed net.Error
			switch {
			case errors.As(err, &failed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded):
				return 0, "" // closed, or waits for more
			case err != nil:
				return 0, wrong(err.Error())
			}
			body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20)) // the server may wait for the rest of a request
			response.Body.Close()
			if answer := (harness.Answer{Status: response.StatusCode, Header: response.Header, Body: string(body)}); answer.Status >= http.StatusOK {
				return answer.Status, wrongRaw(sent, &answer, wrong)
			}
		}
	}
}

// wrongRaw says what is wrong with an answer to raw bytes, or "".
func wrongRaw(sent []byte, answer *harness.Answer, wrong func(string) string) string {
	text := wrong(fmt.Sprintf("%d %v %.200q", answer.Status, answer.Header, answer.Body))
	contentType := answer.Header.Get("Content-Type")
	if contentType == "application/json" || contentType == problemJSON {
		switch answer.Status {
		case http.StatusTooManyRequests, http.StatusBadRequest, http.StatusUnauthorized, http.StatusPaymentRequired:
			return ""
		}
		return text
	}
	switch answer.Status { // of the proxies themselves
	case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusExpectationFailed, http.StatusRequestHeaderFieldsTooLarge, http.StatusMisdirectedRequest,
		http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return ""
	case http.StatusBadGateway, http.StatusInternalServerError: // of Caddy and Traefik: a body that is wrong cannot be passed on
		if sent = bytes.ToLower(sent); bytes.Contains(sent, []byte("chunked")) || bytes.Contains(sent, []byte("content-length")) {
			return ""
		}
	}
	return text
}
