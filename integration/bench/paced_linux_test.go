package main

import "testing"

func TestAnswerIsReadWhenItIsWhole(t *testing.T) {
	const whole = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
	for cut := range len(whole) {
		if status, err := parseAnswer([]byte(whole[:cut])); status != 0 || err != nil {
			t.Fatalf("after %d bytes: %d, %v", cut, status, err)
		}
	}
	if status, err := parseAnswer([]byte(whole)); status != 429 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
}

func TestAnswerThatIsNotUnderstoodIsAnError(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
		"HTTP/1.1 x00 OK\r\nContent-Length: 0\r\n\r\n",
		"SSH\r\nContent-Length: 0\r\n\r\n",
	} {
		if status, err := parseAnswer([]byte(text)); err == nil {
			t.Errorf("%q: status %d", text, status)
		}
	}
}
