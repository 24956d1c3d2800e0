package main

import (
	"bytes"
	"errors"
	"strconv"
)

// answer takes in the bytes of one HTTP/1.1 answer as they come.
type answer struct {
	text []byte // what has come so far
	want int    // how long it is as a whole; 0 if that is not known yet
}

var errAnswer = errors.New("an answer that is not HTTP/1.1 with a Content-Length")

// add takes in bytes. It reports the status once the answer is whole, and is
// then ready for the next; before that the status is 0.
func (a *answer) add(more []byte) (status int, err error) {
	a.text = append(a.text, more...)
	if a.want == 0 {
		head, _, found := bytes.Cut(a.text, []byte("\r\n\r\n"))
		if !found {
			return 0, nil
		}
		length, err := contentLength(head)
		if err != nil {
			return 0, err
		}
		a.want = len(head) + len("\r\n\r\n") + length
	}
	if len(a.text) < a.want {
		return 0, nil
	}
	if len(a.text) > a.want || a.want < len("HTTP/1.1 200") {
		return 0, errAnswer
	}
	status, err = strconv.Atoi(string(a.text[len("HTTP/1.1 "):len("HTTP/1.1 200")]))
	a.text, a.want = a.text[:0], 0
	return status, err
}

var lengthHeader = []byte("\r\nContent-Length: ")

func contentLength(head []byte) (int, error) {
	_, rest, found := bytes.Cut(head, lengthHeader)
	if !found || !bytes.HasPrefix(head, []byte("HTTP/1.1 ")) {
		return 0, errAnswer
	}
	value, _, _ := bytes.Cut(rest, []byte("\r\n"))
	length, err := strconv.Atoi(string(value))
	if err != nil || length < 0 {
		return 0, errAnswer
	}
	return length, nil
}
