/* A sum that takes outer x inner turns of loops, for a self-test: sums[0] is the count-th of s <- 1664525 s +
 * sums[1 + s mod 4], from 0 on. One work-item; what is added comes from memory, so that no compiler knows the
 * end. */
__kernel void loop_turns(uint outer, uint inner, __global uint *sums) {
    uint sum = 0;
    for (uint i = 0; i < outer; i++) {
        for (uint j = 0; j < inner; j++) {
            sum = 1664525u * sum + sums[1 + (sum & 3u)];
        }
    }
    sums[0] = sum;
}
