//go:build !linux

package main

import "errors"

// run needs what only Linux has.
func (s *steady) run() (*steadyResult, error) { return nil, errors.New("needs Linux") }
