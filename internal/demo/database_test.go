package main

import "testing"

func TestShown(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u@h:1/db?sslmode=disable":        "postgres://u@h:1/db?sslmode=disable",
		"postgres://u:secret@h/db":                   "postgres://u:xxxxx@h/db",
		"postgres://h/db?password=secret&sslmode=no": "postgres://h/db?password=xxxxx&sslmode=no",
		"host=h password=secret":                     "of DATABASE_URL",
	} {
		if got := shown(dsn); got != want {
			t.Errorf("shown(%q) is %q, want %q", dsn, got, want)
		}
	}
}
