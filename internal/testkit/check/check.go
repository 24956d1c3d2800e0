// Package check compares the values of a test.
package check

import (
	"fmt"
	"testing"
)

// Equal fails the test unless got and want have the same text. what names the value in the message.
func Equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if got, want := fmt.Sprint(got), fmt.Sprint(want); got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

// OK ends the test unless err is nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
